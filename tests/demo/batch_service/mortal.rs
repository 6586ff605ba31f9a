//! A pool whose caller may die before and after certain calls: where a loop of the client crate is
//! between two of them, nobody else can.

use deadpool_postgres::Pool;
use pg_once::{Args, Autocommit, Error, Executor};
use tokio_postgres::Row;

use crate::crash;

/// A function of `once`, and the name of the point at which to die.
pub type Point = (&'static str, &'static str);

#[derive(Clone, Copy)]
pub struct Mortal<'a> {
    pub pool: &'a Pool,
    pub before: &'static [Point],
    /// Not where the call answered with no rows: then nothing has happened.
    pub after: &'static [Point],
}

impl Executor for Mortal<'_> {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        let die = |points: &[Point]| {
            let here = |(function, _): &&Point| sql.contains(function);
            points
                .iter()
                .filter(here)
                .for_each(|(_, point)| crash::point(point));
        };
        die(self.before);
        let rows = self.pool.query(sql, args).await?;
        if !rows.is_empty() {
            die(self.after);
        }
        Ok(rows)
    }
}

impl Autocommit for Mortal<'_> {}
