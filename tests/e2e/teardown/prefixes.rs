//! A teardown that dies at any point, before or after the commit of any of its calls or between two of its
//! deletions, once or twice, and then runs again from the top: the same end.
//!
//! Of the first deaths of two every third; all with PG_ONCE_LONG=1.

use pg_once_tests::is_long;

use crate::playground::Playground;
use crate::shop::{self, Job};

/// How the program dies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Death {
    /// Its connection breaks.
    Hangs,
    /// Its backend is terminated.
    Terminated,
}

/// Where it dies: at its n-th call or deletion, before that counts or after.
#[derive(Clone, Copy, Debug)]
struct Cut {
    at: usize,
    committed: bool,
    death: Death,
}

/// A teardown in a session of its own, up to its cut.
struct Teardown<'a> {
    session: Option<Playground>,
    admin: &'a Playground,
    job: &'a Job,
    cut: Option<Cut>,
    /// Calls and deletions so far.
    done: usize,
}

/// Refunds and lists come in pages.
const REFUNDS: &str = ", 2";
const PAGE: usize = 3;

struct Died;

impl<'a> Teardown<'a> {
    async fn of(admin: &'a Playground, job: &'a Job, level: &str, cut: Option<Cut>) -> Self {
        let session = admin.another().await;
        let set = format!("set default_transaction_isolation = '{level}'");
        session.show(&set).await;
        Teardown {
            session: Some(session),
            admin,
            job,
            cut,
            done: 0,
        }
    }

    async fn run(&mut self) -> Result<(), Died> {
        let job = self.job;
        if self
            .call(&job.call("outcome", "cancel_request", ""))
            .await?
            == "done"
        {
            return Ok(());
        }
        let refund = job.call("remaining, pass", "cancel_refund", REFUNDS);
        let pass = loop {
            if let ("f", pass) = self.call(&refund).await?.split_once('|').unwrap() {
                break pass.to_owned();
            }
        };
        let mut after = "null".to_owned();
        loop {
            let page = format!(", {after}, {PAGE}");
            let list = job.call("item_id, item ->> 'artifact'", "cancel_items", &page);
            let rows = self.call(&list).await?;
            for row in rows.lines() {
                let (id, artifact) = row.split_once('|').unwrap();
                self.delete(artifact).await?;
                after = format!("'{id}'");
            }
            if rows.lines().count() < PAGE {
                break;
            }
        }
        let confirm = job.call("confirmed", "cancel_confirm", &format!(", {pass}"));
        assert_eq!(self.call(&confirm).await?, "t");
        let finish = job.call("status", "cancel_finish", "");
        assert_eq!(self.call(&finish).await?, "cancelled");
        Ok(())
    }

    /// The cut, if it is here.
    fn cut_here(&mut self) -> Option<Cut> {
        self.done += 1;
        self.cut.filter(|cut| cut.at == self.done)
    }

    async fn call(&mut self, sql: &str) -> Result<String, Died> {
        let cut = self.cut_here();
        let session = self.session.as_ref().unwrap();
        let Some(cut) = cut else {
            return Ok(session.show(sql).await);
        };
        let begin = if cut.committed { "" } else { "begin; " };
        session.show(&format!("{begin}{sql}")).await;
        self.die(cut.death).await;
        Err(Died)
    }

    async fn delete(&mut self, artifact: &str) -> Result<(), Died> {
        let cut = self.cut_here();
        if cut.is_none_or(|cut| cut.committed) {
            self.job.delete(artifact);
        }
        let Some(cut) = cut else { return Ok(()) };
        self.die(cut.death).await;
        Err(Died)
    }

    async fn die(&mut self, death: Death) {
        let session = self.session.take().unwrap();
        if death == Death::Terminated {
            let pid = session.show("select pg_backend_pid()").await;
            let terminate = format!("select pg_terminate_backend({pid}, 10000)");
            assert_eq!(self.admin.show(&terminate).await, "t");
        }
        drop(session);
    }
}

/// Five successes, so that there are three refunds and two pages.
const POINTS: [i64; 5] = [1, 2, 3, 4, 5];

async fn job(play: &Playground, number: usize) -> Job {
    shop::job_of(play, &format!("w{number}"), &POINTS).await
}

/// What the extension has on record of the job, and the job's version.
async fn recorded(play: &Playground, job: &Job) -> String {
    let id = job.id;
    play.show(&format!(
        "select c.open, c.pass, c.confirmed_pass, c.items_total, c.amount_total, j.version,
                (select string_agg(pass || ':' || items || ':' || amount, ' ' order by pass)
                   from once.refund where row_id = '{id}')
           from once.cancel as c join batch_job as j on j.id::text = c.row_id where c.row_id = '{id}'"
    ))
    .await
}

/// What became of a job that was torn down.
struct End {
    recorded: String,
    /// Of the last program.
    steps: usize,
    /// Each program but the last one died.
    all_died: bool,
}

/// Tears a new job down with these cuts, then once more to the end.
async fn end_of(play: &Playground, number: usize, level: &str, cuts: &[Cut]) -> End {
    let job = job(play, number).await;
    let mut all_died = true;
    for cut in cuts {
        let mut program = Teardown::of(play, &job, level, Some(*cut)).await;
        all_died &= program.run().await.is_err();
    }
    let mut last = Teardown::of(play, &job, level, None).await;
    assert!(last.run().await.is_ok());
    assert_eq!(job.assert_ended(play).await.status, "cancelled", "{cuts:?}");
    End {
        recorded: recorded(play, &job).await,
        steps: last.done,
        all_died,
    }
}

fn cuts(steps: usize, death: Death) -> impl Iterator<Item = Cut> + Clone {
    (1..=steps).flat_map(move |at| {
        [false, true].map(|committed| Cut {
            at,
            committed,
            death,
        })
    })
}

#[tokio::test]
async fn a_teardown_cut_anywhere_and_run_again_comes_to_the_same_end() {
    let play = Playground::directly("ends the session that serves it").await;
    shop::prepare(&play).await;
    let mut number = 0;
    for level in ["read committed", "repeatable read", "serializable"] {
        number += 1;
        let whole = end_of(&play, number, level, &[]).await;
        let steps = whole.steps;
        assert_eq!(whole.recorded, "f|3|3|5|15|1|1:2:3 2:2:7 3:1:5");
        assert_eq!(steps, 13);
        for death in [Death::Hangs, Death::Terminated] {
            for cut in cuts(steps, death) {
                number += 1;
                let end = end_of(&play, number, level, &[cut]).await;
                assert_eq!(end.recorded, whole.recorded, "{level} {cut:?}");
                assert!(end.all_died, "{level} {cut:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_teardown_cut_twice_comes_to_the_same_end() {
    let play = shop::open().await;
    let whole = end_of(&play, 0, "read committed", &[]).await;
    let mut number = 0;
    // Odd, so that both kinds of cuts and all steps come.
    let every = if is_long() { 1 } else { 3 };
    for first in cuts(whole.steps, Death::Hangs).step_by(every) {
        for second in cuts(whole.steps, Death::Hangs) {
            number += 1;
            let end = end_of(&play, number, "read committed", &[first, second]).await;
            assert_eq!(end.recorded, whole.recorded, "{first:?} {second:?}");
            if !end.all_died {
                // It had ended before; there is no later one.
                break;
            }
        }
    }
    assert!(number > 500 / every, "{number}");
}
