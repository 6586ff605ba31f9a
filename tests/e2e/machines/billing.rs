//! The second story, over the tables and the definition that users copy: two clerks press "close billing"
//! or "apply payment" at once. One invoice, one payment, whoever dies where.
//!
//! The clerks that die are real processes (psql), killed with SIGKILL.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};

use crate::playground::{Playground, cluster};
use crate::waiting::{at_once, sessions};

const TABLES: &str = include_str!("../../../sql/examples/billing.sql");
const BILLING: &str = include_str!("../../../sql/examples/billing.json");
const ID: &str = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";

/// One open billing, the guard on, and a scheduler that has been there.
async fn office() -> Playground {
    let play = Playground::open().await;
    play.show(TABLES).await;
    play.show(&format!("select once.machine_define($def${BILLING}$def$)"))
        .await;
    play.show("select once.machine_guard('billing', true); select once.sweep()")
        .await;
    open_billing(&play, ID).await;
    play
}

async fn open_billing(play: &Playground, id: &str) {
    play.show(&format!(
        "insert into billing (id, customer, total) values ('{id}', 'c', 119)"
    ))
    .await;
}

/// What the clerk's program does for one press of a button, as SQL that any language could send.
fn press(step: &str, id: &str) -> String {
    let (write, patch) = match step {
        "close" => (
            "insert into invoice (billing_id, total, fiscal_no) select id, total, 'f' from billing where id = b",
            r#"{"invoices": 1}"#,
        ),
        _ => (
            "insert into payment (billing_id, amount, reference) values (b, 119, 'r')",
            "{}",
        ),
    };
    format!(
        "do $$ declare c record; f record; b uuid := '{id}'; begin
            select * into c from once.action_claim('billing', b::text, '{step}', 'clerk', holder => gen_random_uuid()::text);
            commit;
            if c.outcome = 'claimed' then
                {write};
                select * into f from once.action_finish('billing', b::text, c.token, '{patch}');
                commit;
            end if;
         end $$"
    )
}

/// `status, invoices, payments` of the billing.
async fn state(play: &Playground, id: &str) -> String {
    play.show(&format!(
        "select status, (select count(*) from invoice where billing_id = b.id),
                (select count(*) from payment where billing_id = b.id) from billing as b where id = '{id}'"
    ))
    .await
}

#[tokio::test]
async fn eight_clerks_press_both_buttons_and_there_is_one_invoice_and_one_payment() {
    let play = office().await;
    let sessions = sessions(&play, 8).await;
    for round in 0..25 {
        let id = format!("00000000-0000-0000-0000-{round:012}");
        open_billing(&play, &id).await;
        // Somebody presses again until both are done.
        for _ in 0..10 {
            let answers = at_once(&sessions, |i| {
                press(if i % 2 == 0 { "close" } else { "apply_payment" }, &id)
            })
            .await;
            for answer in answers {
                answer.unwrap();
            }
            if state(&play, &id).await.starts_with("paid") {
                break;
            }
        }
        assert_eq!(state(&play, &id).await, "paid|1|1", "{round}");
    }
}

#[tokio::test]
async fn the_second_clerk_is_told_busy_and_afterwards_what_the_billing_is() {
    let play = office().await;
    let other = play.another().await;
    let claim = format!(
        "select outcome, status from once.action_claim('billing', '{ID}', 'close', 'clerk')"
    );
    let token = play
        .show(&format!(
            "select token from once.action_claim('billing', '{ID}', 'close', 'clerk')"
        ))
        .await;
    assert_eq!(other.show(&claim).await, "in_progress|closing");
    // The night run is as busy as a clerk.
    assert_eq!(
        other.show(&claim.replace("'clerk'", "'night_run'")).await,
        "in_progress|closing"
    );
    play.ask(&format!(
        "select outcome, status from once.action_finish('billing', '{ID}', {token})"
    ))
    .is("finished|closed")
    .await;
    assert_eq!(other.show(&claim).await, "refused|closed");
}

#[tokio::test]
async fn a_bank_import_makes_its_move_without_a_lease_and_once() {
    let play = office().await;
    play.show(&press("close", ID)).await;
    let sessions = sessions(&play, 6).await;
    play.ask(&format!(
        "select outcome from once.action_claim('billing', '{ID}', 'apply_payment', 'bank_import')"
    ))
    .is("unclaimed")
    .await;
    let import = format!(
        "do $$ declare m boolean; begin
            select moved into m from once.transition('billing', '{ID}', 'paid', requester => 'bank_import');
            if m then insert into payment (billing_id, amount, reference) values ('{ID}', 119, 'bank'); end if;
         end $$"
    );
    let answers = at_once(&sessions, |i| match i % 2 {
        0 => import.clone(),
        _ => press("apply_payment", ID),
    })
    .await;
    for answer in answers {
        answer.unwrap();
    }
    if state(&play, ID).await.starts_with("closed") {
        play.show(&import).await;
    }
    assert_eq!(state(&play, ID).await, "paid|1|1");
}

/// A clerk in a process of its own.
struct Clerk {
    process: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Clerk {
    fn sit_down(database: &str) -> Clerk {
        let mut process = cluster()
            .command("psql")
            .args(["-X", "-q", "-A", "-t", "-d", database])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (
            process.stdin.take().unwrap(),
            process.stdout.take().unwrap(),
        );
        Clerk {
            process,
            input,
            output: BufReader::new(output),
        }
    }

    /// One line of SQL, and its one line of answer.
    fn says(&mut self, sql: &str) -> String {
        writeln!(self.input, "{sql}").unwrap();
        self.input.flush().unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// SIGKILL.
    fn dies(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// What a clerk sends to close the billing; TOKEN is of the first answer.
const CLOSING: [&str; 6] = [
    "begin; select token from once.action_claim('billing', 'ID', 'close', 'clerk', '1 us');",
    "commit; select 1;",
    "begin; select lease_left is not null from once.action_extend('billing', 'ID', TOKEN, '1 us');",
    "insert into invoice (billing_id, total, fiscal_no) values ('ID', 119, 'f') returning 1;",
    "select outcome from once.action_finish('billing', 'ID', TOKEN, '{\"invoices\": 1}');",
    "commit; select 1;",
];

#[tokio::test]
async fn wherever_a_clerk_dies_the_billing_is_back_after_one_sweep_and_closed_once_in_the_end() {
    let play = office().await;
    for said in 0..=CLOSING.len() {
        let id = format!("00000000-0000-0000-0000-{said:012}");
        open_billing(&play, &id).await;
        let mut clerk = Clerk::sit_down(&play.database.name);
        let mut token = String::new();
        for (i, sql) in CLOSING.iter().take(said).enumerate() {
            let answer = clerk.says(&sql.replace("ID", &id).replace("TOKEN", &token));
            assert!(!answer.is_empty(), "{sql}");
            if i == 0 {
                token = answer;
            }
        }
        clerk.dies();
        // The server notices that its client is gone; until then the row or the lease is locked.
        pg_once_tests::race::poll_async("the billing to be back", async || {
            play.show("select once.sweep(task => 'action_release')")
                .await;
            let shown = state(&play, &id).await;
            assert!(
                ["open|0|0", "closing|0|0", "closed|1|0"].contains(&shown.as_str()),
                "{said}: {shown}"
            );
            Ok((!shown.starts_with("closing")).then_some(()))
        })
        .await
        .unwrap();
        let left = state(&play, &id).await;
        let expected = if said == CLOSING.len() {
            "closed|1|0"
        } else {
            "open|0|0"
        };
        assert_eq!(left, expected, "{said} of {} said", CLOSING.len());
        pg_once_tests::race::poll_async("the billing to be closed", async || {
            play.show(&press("close", &id)).await;
            Ok(state(&play, &id).await.starts_with("closed").then_some(()))
        })
        .await
        .unwrap();
        assert_eq!(state(&play, &id).await, "closed|1|0", "{said}");
    }
}
