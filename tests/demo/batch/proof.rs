//! The questions that decide about jobs, each one SQL over the tables, the logs that triggers kept,
//! the artifact directory and the plan.
//!
//! Invariant: what a wallet must hold is computed from the plan and from how each job ended, never
//! from what the service says that it refunded.

use crate::proof::{Question, Want, question};

/// What each job moved in its wallet: `net` below 0 was burned and not given back.
const MOVED: &str = "\
with moved as (select job, sum(delta) as net, sum(delta) filter (where delta > 0) as back,
                      -sum(delta) filter (where delta < 0) as burned
               from wallet_log group by job)";

/// The moments at which a job came back to life.
const RESURRECTIONS: &str = "\
old_status in ('cancelled', 'done') or ((old_status = 'cancelling' or flagged) and new_status in ('running', 'done'))";

/// The questions for both services.
pub fn questions() -> Vec<Question> {
    vec![
        question("jobs asked for", Want::Any, "select count(*) from asked"),
        question("jobs done", Want::Any, count("status = 'done'")),
        question("jobs cancelled", Want::Any, count("status = 'cancelled'")),
        question(
            "jobs ended",
            Want::All,
            count("status in ('done', 'cancelled')"),
        ),
        question(
            "jobs stuck",
            Want::Zero,
            count("status not in ('done', 'cancelled')"),
        ),
        question(
            "resurrected jobs",
            Want::Zero,
            format!("select count(distinct job) from status_log\nwhere {RESURRECTIONS}"),
        ),
        question(
            "points refunded twice",
            Want::Zero,
            format!(
                "{MOVED}\nselect sum(net) from moved join batch_job j on j.id = job\n\
                 where j.status = 'cancelled' and net > 0"
            ),
        ),
        question(
            "points never refunded",
            Want::Zero,
            format!(
                "{MOVED}\nselect -sum(net) from moved join batch_job j on j.id = job\n\
                 where j.status = 'cancelled' and net < 0"
            ),
        ),
        question(
            "points refunded for jobs that are done",
            Want::Zero,
            format!(
                "{MOVED}\nselect sum(back) from moved join batch_job j on j.id = job\n\
                 where j.status = 'done'"
            ),
        ),
        question(
            "points burned twice",
            Want::Zero,
            format!(
                "{MOVED}\nselect sum(burned - price) from moved join asked using (job)\nwhere burned > price"
            ),
        ),
        question("orphaned artifacts", Want::Zero, ORPHANED),
        question("results lost of jobs that are done", Want::Zero, LOST),
        question("wallets that do not add up", Want::Zero, WALLETS),
        question(
            "changes of wallets that no job explains",
            Want::Zero,
            "select count(*) from wallet_log where job is null",
        ),
        question("users told another end than the job's", Want::Zero, TOLD),
    ]
}

/// What only pg_once can be asked.
pub fn machine_questions() -> Vec<Question> {
    vec![
        question(
            "jobs that cancel_audit finds",
            Want::Zero,
            "select count(*) from once.cancel_audit('batch_job')",
        ),
        question(
            "problems that machine_check finds",
            Want::Zero,
            "select count(*) from once.machine_check('batch_job')",
        ),
    ]
}

fn count(which: &str) -> String {
    format!("select count(*) from batch_job where {which}")
}

/// Files that are no result of a job that is done or can still be.
const ORPHANED: &str = "\
select count(*) from artifact a
where not exists (select from batch_item i join batch_job j on j.id = i.job_id
                  where i.artifact = a.name and j.status <> 'cancelled')";

const LOST: &str = "\
select count(distinct i.artifact) from batch_item i join batch_job j on j.id = i.job_id
where j.status = 'done' and i.state = 'succeeded'
  and not exists (select from artifact a where a.name = i.artifact)";

/// The ledger's proof: what was there, less the price of every job that is done, is what is there.
const WALLETS: &str = "\
select count(*) from wallet w join wallet_start s using (customer)
where w.points <> s.points - (select coalesce(sum(a.price), 0) from asked a join batch_job j on j.id = a.job
                              where a.customer = w.customer and j.status = 'done')";

const TOLD: &str = "\
select count(distinct s.key) from saw s join batch_job j on j.id = s.key::bigint
where s.client like 'user%' and s.status = 200 and s.body::json->>'status' <> j.status";

/// When damage was done, as microseconds since 1970: a job came back to life, or was given back more
/// than it had burned, or anything although it was done in the end.
pub fn damage() -> String {
    format!(
        "select (extract(epoch from at) * 1000000)::bigint from status_log where {RESURRECTIONS}\n\
         union all\n\
         select (extract(epoch from l.at) * 1000000)::bigint\n\
         from (select *, sum(delta) over (partition by job order by id) as net from wallet_log) l\n\
         join batch_job j on j.id = l.job\n\
         where l.delta > 0 and (l.net > 0 or j.status = 'done')"
    )
}
