//! The shop that the tests of this binary share: batch jobs, their items and wallets, the machine over
//! them, and what must be true of a job once it has come to its end.
//!
//! Artifacts live outside of the database, in a `Store`; an item's row names its artifact.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::actor::Item;
use crate::playground::Playground;

const TABLES: &str = include_str!("../../../sql/examples/batch_job.sql");
pub const MACHINE: &str = include_str!("../../../sql/examples/batch_job.json");

/// How many the server has ended in this database.
pub const DEADLOCKS: &str =
    "select sum(deadlocks) from pg_stat_database where datname = current_database()";

/// What a wallet holds before any item has cost anything.
pub const FULL: i64 = 1000;

/// Every status that a job has ever left, so that a resurrected job is seen even if it died again.
const HISTORY: &str = "
create table moved (job bigint not null, was text not null, became text not null);
create index on moved (job);
create function note_move() returns trigger language plpgsql as $$
begin
    insert into public.moved values (old.id, old.status, new.status);
    return null;
end $$;
create trigger note_move after update of status on batch_job
    for each row when (old.status is distinct from new.status) execute function note_move();";

/// For each wallet a job with a success (3 points, paid for), an item that is to be done (5 points) and one
/// that failed and left its artifact behind (7 points, never paid).
const NEW_JOBS: &str = "
with w as (insert into wallet select customer, 997 from unnest(array['WALLETS']) as customer returning customer),
     j as (insert into batch_job (customer) select customer from w returning id, customer),
     i as (insert into batch_item (job_id, input, state, points, artifact)
           select id, n, s, p, id || '-' || n
             from j, (values (1, 'made', 'succeeded', 3), (2, 'todo', 'pending', 5), (3, 'lost', 'failed', 7)) as v(o, n, s, p)
            order by id, o
           returning id, job_id, input)
select j.id, i.id, j.customer from i join j on j.id = i.job_id where i.input = 'todo'";

/// What jobs have come to; the `id` of a lease is made as sql/action.sql says.
const ENDS: &str = r"
select j.id, j.status, j.cancel_requested, w.points, i.spent, i.settled, i.made,
       (select coalesce(sum(amount), 0) from once.refund where machine = 'batch_job' and row_id = j.id::text),
       (select count(*) from once.cancel_audit('batch_job', j.id::text)),
       (select count(*) from once.action_lease as l
         where l.state = 'h' and l.id = encode(substr(
               sha256('batch_job'::bytea || '\x00'::bytea || j.id::text::bytea), 1, 16), 'hex')::uuid),
       (select count(*) from moved where job = j.id and was in ('done', 'cancelled'))
  from batch_job as j
  join wallet as w using (customer)
 cross join lateral (
       select coalesce(sum(points) filter (where state = 'succeeded'), 0) as spent,
              string_agg(distinct coalesce(settled, '~'), '+') as settled,
              string_agg(artifact, ' ') filter (where state = 'succeeded') as made
         from batch_item where job_id = j.id) as i
 where j.id = any('{IDS}')
 order by j.id";

/// The names of artifacts that exist at the moment.
pub type Store = Arc<Mutex<BTreeSet<String>>>;

/// One of the shop's jobs, made by `Shop::job`.
#[derive(Clone, Default)]
pub struct Job {
    pub id: i64,
    /// The item that is still to be done.
    pub item: i64,
    pub wallet: String,
    pub store: Store,
}

/// What a job has come to, as one look at the database told.
#[derive(Debug)]
pub struct End {
    job: i64,
    pub status: String,
    pub flagged: bool,
    wallet: i64,
    /// Points of all items that succeeded.
    spent: i64,
    /// The distinct values of `settled`.
    settled: String,
    made: String,
    refunded: i64,
    audit: i64,
    held: i64,
    resurrected: i64,
}

pub async fn open() -> Playground {
    let play = Playground::open().await;
    prepare(&play).await;
    play
}

/// The story's tables.
pub async fn tables(play: &Playground) {
    play.show(TABLES).await;
}

/// Makes the tables and the guarded machine.
pub async fn prepare(play: &Playground) {
    tables(play).await;
    play.show(HISTORY).await;
    play.show(&format!("select once.machine_define($m${MACHINE}$m$)"))
        .await;
    guard(play, true).await;
}

pub async fn guard(play: &Playground, on: bool) {
    play.show(&format!("select once.machine_guard('batch_job', {on})"))
        .await;
}

/// A new job with a wallet of its own.
pub async fn job(play: &Playground, wallet: &str) -> Job {
    let mut jobs = jobs(play, &[wallet.to_owned()]).await;
    jobs.pop().unwrap()
}

/// A new job for each of these wallets.
pub async fn jobs(play: &Playground, wallets: &[String]) -> Vec<Job> {
    let made = NEW_JOBS.replace("WALLETS", &wallets.join("', '"));
    let rows = play.show(&made).await;
    let jobs = rows.lines().map(|row| {
        let parts: Vec<&str> = row.split('|').collect();
        let id = parts[0];
        let store = ["made", "lost"].map(|name| format!("{id}-{name}"));
        Job {
            id: id.parse().unwrap(),
            item: parts[1].parse().unwrap(),
            wallet: parts[2].to_owned(),
            store: Arc::new(Mutex::new(store.into())),
        }
    });
    jobs.collect()
}

/// What jobs, in the order of their ids, have come to.
pub async fn ends(play: &Playground, jobs: &[&Job]) -> Vec<End> {
    let ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
    let rows = play.show(&ENDS.replace("IDS", &ids.join(","))).await;
    let ends = rows.lines().map(|row| {
        let parts: Vec<&str> = row.split('|').collect();
        let text = |n: usize| parts[n].to_owned();
        let number = |n: usize| parts[n].parse().unwrap();
        End {
            job: number(0),
            status: text(1),
            flagged: parts[2] == "t",
            wallet: number(3),
            spent: number(4),
            settled: text(5),
            made: text(6),
            refunded: number(7),
            audit: number(8),
            held: number(9),
            resurrected: number(10),
        }
    });
    ends.collect()
}

/// A new job in a wallet made here, with an undecided success for each of `points`, all paid for.
pub async fn job_of(play: &Playground, wallet: &str, points: &[i64]) -> Job {
    let paid: i64 = points.iter().sum();
    let id = play
        .show(&format!(
            "insert into wallet values ('{wallet}', {}) on conflict do nothing;
             insert into batch_job (customer) values ('{wallet}') returning id",
            FULL - paid
        ))
        .await;
    for (n, points) in points.iter().enumerate() {
        play.show(&format!(
            "insert into batch_item (job_id, input, state, points, artifact)
             values ({id}, 'i{n}', 'succeeded', {points}, '{id}-{n}')"
        ))
        .await;
    }
    let store = (0..points.len()).map(|n| format!("{id}-{n}")).collect();
    Job {
        id: id.parse().unwrap(),
        item: 0,
        wallet: wallet.to_owned(),
        store: Arc::new(Mutex::new(store)),
    }
}

impl Job {
    /// A call that takes the machine and this job's id first; `more` are further arguments.
    pub fn call(&self, columns: &str, function: &str, more: &str) -> String {
        let id = self.id;
        format!("select {columns} from once.{function}('batch_job', '{id}'{more})")
    }

    /// The item that is still to be done and its artifact.
    pub fn todo(&self) -> Item {
        (self.item, format!("{}-todo", self.id))
    }

    pub fn delete(&self, artifact: &str) {
        self.store.lock().unwrap().remove(artifact);
    }

    pub fn make(&self, artifact: &str) {
        self.store.lock().unwrap().insert(artifact.to_owned());
    }

    /// The job's status and whether it is flagged.
    pub async fn status(&self, play: &Playground) -> (String, bool) {
        let sql = "select status, cancel_requested from batch_job where id = ";
        let row = play.show(&format!("{sql}{}", self.id)).await;
        let (status, flagged) = row.split_once('|').unwrap();
        (status.to_owned(), flagged == "t")
    }

    /// Asserts that the job has ended with nothing wrong; `FULL` was in its wallet before its first item.
    pub async fn assert_ended(&self, play: &Playground) -> End {
        let end = ends(play, &[self]).await.pop().unwrap();
        assert_eq!(self.wrong(&end), None, "job {}: {end:?}", self.id);
        end
    }

    /// What is wrong with the end that the job has come to.
    pub fn wrong(&self, end: &End) -> Option<String> {
        let store = self.store.lock().unwrap();
        assert_eq!(end.job, self.id);
        let (wallet, refunded, settled) = match end.status.as_str() {
            "done" => (FULL - end.spent, 0, "kept"),
            "cancelled" => (FULL, end.spent, "returned"),
            _ => return Some("it has not ended".to_owned()),
        };
        let missing = end.made.split(' ').find(|made| !store.contains(*made));
        let rules = [
            ("flag", end.flagged == (end.status == "cancelled")),
            ("wallet", end.wallet == wallet),
            ("refunds", end.refunded == refunded),
            ("items", end.settled == settled),
            ("artifacts", end.flagged == store.is_empty()),
            ("artifact missing", end.flagged || missing.is_none()),
            ("audit", end.audit == 0),
            ("a lease is held", end.held == 0),
            ("resurrected", end.resurrected == 0),
        ];
        let broken = rules.iter().find(|(_, holds)| !holds);
        broken.map(|(rule, _)| format!("{rule}; artifacts {store:?}"))
    }
}
