//! Workers killed with SIGKILL: what they held comes back with the same delivery keys, and they are told.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::playground::{Playground, cluster};

/// A worker in a process of its own.
struct Worker {
    process: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Worker {
    fn start(play: &Playground) -> Worker {
        let mut process = cluster()
            .command("psql")
            .args(["-X", "-q", "-A", "-t", "-d", &play.database.name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Worker {
            say: process.stdin.take().unwrap(),
            hear: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    /// The rows of `sql`.
    fn ask(&mut self, sql: &str) -> Vec<String> {
        writeln!(self.say, "{sql};\n\\echo the end").unwrap();
        let mut rows = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.hear.read_line(&mut line).unwrap() > 0, "psql is gone");
            match line.trim_end() {
                "the end" => return rows,
                row => rows.push(row.to_owned()),
            }
        }
    }

    fn kill_9(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

const TAKE: &str =
    "select token, event_id, attempt, delivery_key from once.outbox_take('t', max => 10)";

async fn emitted(key: &str) -> Playground {
    let play = Playground::open().await;
    play.show("select once.topic_set('t', '{}')").await;
    for n in 0..4 {
        play.show(&format!("select once.outbox_emit('t', '{n}'{key})"))
            .await;
    }
    play
}

/// Moves the clock this far ahead.
async fn ahead(play: &Playground, interval: &str) {
    play.show(&format!(
        "select set_config('once.fake_now', (clock_timestamp() + interval '{interval}')::text, false)"
    ))
    .await;
}

#[tokio::test]
async fn a_killed_workers_batch_comes_back_with_its_delivery_keys_and_its_ack_is_lost() {
    for key in ["", ", 'key'"] {
        let play = emitted(key).await;
        let mut worker = Worker::start(&play);
        let taken = worker.ask(TAKE);
        assert_eq!(taken.len(), 4);
        let token: i64 = taken[0].split('|').next().unwrap().parse().unwrap();
        let first = taken[0].split('|').nth(1).unwrap();
        worker.ask(&format!(
            "select once.outbox_ack('t', 'default', {token}, array[{first}])"
        ));
        worker.kill_9();
        ahead(&play, "50 s").await;
        assert_eq!(play.show(TAKE).await, "");
        ahead(&play, "70 s").await;
        let mut again = Vec::new();
        let mut tokens = vec![token];
        for _ in 0..3 {
            let rows = play.show(TAKE).await;
            for row in rows.lines() {
                let (token, rest) = row.split_once('|').unwrap();
                tokens.push(token.parse().unwrap());
                again.push(rest.to_owned());
            }
            let token = tokens.last().unwrap();
            // The worker's late ack, when somebody else has its events.
            for late in [
                format!("ack('t', 'default', {})", tokens[0]),
                format!("extend('t', 'default', {})", tokens[0]),
                format!("nack('t', 'default', {})", tokens[0]),
            ] {
                let late = format!("select * from once.outbox_{late}");
                assert_eq!(play.code(&late).await, "ON001", "{late}");
            }
            let ack = format!("select once.outbox_ack('t', 'default', {token})");
            assert_eq!(play.show(&ack).await, "1", "{ack}");
        }
        // Same events, same attempt (they were not alone), same delivery keys.
        let rest: Vec<_> = taken[1..]
            .iter()
            .map(|row| row.split_once('|').unwrap().1.to_owned())
            .collect();
        assert_eq!(again, rest);
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        assert_eq!(play.show(TAKE).await, "");
        // What it acked in its lifetime still counts.
        let ack = format!("select once.outbox_ack('t', 'default', {token}, array[{first}])");
        assert_eq!(play.code(&ack).await, "ON006");
    }
}
