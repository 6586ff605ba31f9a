//! Whether the files of a database are sound, as the server's own modules see them.

use tokio_postgres::{Client, Error};

/// Where set, every test ends with this check beside `once.verify()`: `make test-assert` sets it.
const VARIABLE: &str = "PG_ONCE_PAGES";

/// Whether the files are looked at when a test ends.
#[must_use]
pub fn are_checked() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Ends the other sessions of the database: the checks would wait for their locks.
pub(crate) const ALONE: &str = "do $$ begin
    perform pg_catalog.pg_terminate_backend(pid, 10000) from pg_catalog.pg_stat_activity
      where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend';
end $$";

pub(crate) const MODULES: &str = "create schema if not exists pages;
create extension if not exists amcheck schema pages;
create extension if not exists pg_visibility schema pages";

/// Raises what is wrong with a table or an index that is not the server's own. `pg_check_visible` sees too much while
/// a transaction of another database is open, so what it finds must be there for half a minute.
pub(crate) const SOUND: &str = "do $$
declare
    stored regclass[] := array(
        select t.id from pg_catalog.pg_class c, lateral (values (c.oid), (c.reltoastrelid)) t (id)
         where c.relkind in ('r', 'm') and c.relpersistence <> 't' and t.id <> 0
           and c.relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace));
    found text;
begin
    for round in 1 .. 300 loop
        select pg_catalog.string_agg(f.told, '; ') into found from pg_catalog.unnest(stored) s (id), lateral (
            select pg_catalog.format('%s, verify_heapam: %s', s.id, v)
              from pages.verify_heapam(s.id, check_toast => true) v
            union all select pg_catalog.format('%s, pg_check_frozen: %s', s.id, v) from pages.pg_check_frozen(s.id) v
            union all select pg_catalog.format('%s, pg_check_visible: %s', s.id, v) from pages.pg_check_visible(s.id) v
        ) f (told);
        exit when found is null;
        commit;
        perform pg_catalog.pg_sleep(0.1);
    end loop;
    if found is not null then
        raise exception 'damaged: %', found;
    end if;
    perform pages.bt_index_check(x.indexrelid, heapallindexed => true)
       from pg_catalog.pg_index x join pg_catalog.pg_class i on i.oid = x.indexrelid
       join pg_catalog.pg_am a on a.oid = i.relam
      where x.indrelid = any (stored) and x.indisvalid and a.amname = 'btree';
end $$";

/// Installs the modules. False: the server was built without them, and its files need not be checked.
///
/// # Errors
/// If they are missing under `make test-assert`.
pub async fn install(client: &Client) -> Result<bool, Error> {
    const THERE: &str = "select count(*) = 2 from pg_available_extensions where name in ('amcheck', 'pg_visibility')";
    let are_there: bool = client.query_one(THERE, &[]).await?.get(0);
    if are_there || are_checked() {
        client.batch_execute(MODULES).await?;
        return Ok(true);
    }
    eprintln!("NOT TESTED: amcheck and pg_visibility are not there; Debian's server has them");
    Ok(false)
}

/// Looks at the files, with installed modules.
///
/// # Errors
/// With what is wrong.
pub async fn check(client: &Client) -> Result<(), Error> {
    client.batch_execute(SOUND).await
}
