//! What must be true of the fuzz's database when nobody calls any more.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use crate::janitor::show;

/// Each lists what violates it.
const INVARIANTS: &str = include_str!("invariants.sql");

/// Events that somebody has yet to ack.
const UNACKED: &str = "select count(*) from fz.emitted as e join once.topic using (topic) join once.subscriber as s using (topic_id)
     where not exists (select from fz.acked as a where (a.topic, a.sub, a.event_id) = (e.topic, s.subscriber, e.event_id))";

/// The owner's call for a copy that clients have not seen yet: whatever is pending stays so.
const RENEW: &str = "select once.incarnation_renew()";

const TAKE_AND_ACK: &str = "
select once.outbox_redrive(topic, subscriber) from once.topic join once.subscriber using (topic_id) where topic in ('one', 'two');
select fz.take(topic, subscriber, 100) from once.topic join once.subscriber using (topic_id) where topic in ('one', 'two');";

/// One of the last batches; those of which some events have left are none of it.
const ACK: &str = "select fz.ack(topic, sub, max(token), true) from fz.took group by topic, sub having topic = $t and sub = $s";

/// Everything that was emitted is taken and acked, dead letters after a redrive.
pub async fn drain(client: &Client) {
    show(client, RENEW).await;
    let begin = Instant::now();
    let mut left = show(client, UNACKED).await;
    while left != "0" {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{left} events are stuck"
        );
        show(client, TAKE_AND_ACK).await;
        for (topic, sub) in [
            ("one", "default"),
            ("one", "other"),
            ("two", "default"),
            ("two", "other"),
        ] {
            let ack = ACK
                .replace("$t", &format!("'{topic}'"))
                .replace("$s", &format!("'{sub}'"));
            if let Err(error) = client.simple_query(&ack).await {
                let code = error
                    .code()
                    .map(|code| code.code().to_owned())
                    .unwrap_or_default();
                assert!(
                    ["ON001", "ON006", "FZ001"].contains(&code.as_str()),
                    "{error:?}"
                );
            }
        }
        left = show(client, UNACKED).await;
    }
}

/// What the invariants are about: a fuzz that gets nothing done would violate none.
const ENOUGH: &str = "select (select count(*) from fz.ordered), (select count(*) from fz.acked),
    (select count(*) from once.refund), (select count(*) from batch_job where status = 'done'),
    (select count(*) from batch_job where status = 'cancelled')";

/// In the long form there is some of each.
pub async fn assert_enough(client: &Client) {
    let done = show(client, ENOUGH).await;
    println!("orders, acked, refunds, jobs done and cancelled: {done}");
    assert!(done.split('|').all(|n| n != "0"), "{done}");
}

/// Fails with the rows that violate an invariant.
pub async fn assert_whole(client: &Client) {
    let mut violated = Vec::new();
    for paragraph in INVARIANTS.split("\n-- ").skip(1) {
        let (name, sql) = paragraph.split_once('\n').unwrap();
        let rows = show(client, sql).await;
        if !rows.is_empty() {
            let rows: Vec<_> = rows.lines().take(5).collect();
            violated.push(format!("{name}:\n{}", rows.join("\n")));
        }
    }
    assert!(violated.is_empty(), "{}", violated.join("\n"));
}

/// No server has logged an error of its own: a failed assertion, a PANIC, an internal error, a signal but SIGKILL.
pub fn assert_logs_are_clean(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let log = std::fs::read(&path).unwrap();
        let log = String::from_utf8_lossy(&log);
        let bad: Vec<_> = log.lines().filter(|line| is_bad(line)).take(5).collect();
        assert!(bad.is_empty(), "{}:\n{}", path.display(), bad.join("\n"));
    }
}

/// The prefix has the code behind ` !`.
fn is_bad(line: &str) -> bool {
    let internal = line.contains("!XX") && !line.contains("!XX002");
    let signal = line.contains("was terminated by signal") && !line.contains("signal 9");
    internal
        || signal
        || line.contains("PANIC:")
        || line.contains("TRAP:")
        || line.contains("leak:")
}
