//! A database that was upgraded is the same as a new one: every object, column, right, comment and what a dump
//! leaves out.

use std::collections::BTreeSet;

use crate::playground::Playground;
use crate::released::{UPDATE, create_old, empty, old, update, version};

/// What there is to compare: each query gives a line for each thing. (`pg_attver` is a note of some servers' own,
/// another one in each database.)
const CATALOG: [(&str, &str); 14] = [
    (
        "extension",
        "select extname, extversion, extrelocatable, extowner::regrole, extnamespace::regnamespace from pg_extension
          where extname = 'pg_once'",
    ),
    (
        "members",
        "select pg_describe_object(d.classid, d.objid, d.objsubid) from pg_depend d join pg_extension e on e.oid = d.refobjid
          where e.extname = 'pg_once' and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'",
    ),
    (
        "tables to dump",
        "select c.oid::regclass, c.condition from pg_extension e, unnest(e.extconfig, e.extcondition) c(oid, condition)
          where e.extname = 'pg_once'",
    ),
    (
        "routines",
        "select p.oid::regprocedure, p.prokind, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), p.provolatile,
                p.proparallel, p.proisstrict, p.prosecdef, p.proleakproof, p.proretset, p.prorows, p.procost, p.proconfig, l.lanname,
                p.prosrc, p.probin, p.prosqlbody is null, p.prosupport, p.proowner::regrole, p.proacl, obj_description(p.oid, 'pg_proc')
           from pg_proc p join pg_language l on l.oid = p.prolang where p.pronamespace = 'once'::regnamespace",
    ),
    (
        "relations",
        "select c.relname, c.relkind, c.relpersistence, c.reloptions, t.reloptions, c.reltoastrelid <> 0, a.amname, c.relowner::regrole,
                c.relacl, c.relrowsecurity, c.relforcerowsecurity, c.relreplident, c.relnatts, c.relchecks, c.relhastriggers, c.relhasrules,
                c.reltablespace, obj_description(c.oid, 'pg_class')
           from pg_class c left join pg_class t on t.oid = c.reltoastrelid left join pg_am a on a.oid = c.relam
          where c.relnamespace = 'once'::regnamespace",
    ),
    (
        "columns",
        "select c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attisdropped, a.attidentity,
                a.attgenerated, a.attcollation::regcollation, a.attstorage, a.attcompression, nullif(a.attstattarget, -1),
                (select array_agg(o) from unnest(a.attoptions) o where o not like 'pg_attver=%'),
                a.attacl, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
           from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
                left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
          where c.relnamespace = 'once'::regnamespace",
    ),
    (
        "constraints",
        "select conrelid::regclass, conname, contype, convalidated, pg_get_constraintdef(oid), obj_description(oid, 'pg_constraint')
           from pg_constraint where connamespace = 'once'::regnamespace",
    ),
    (
        "indexes",
        "select indexrelid::regclass, pg_get_indexdef(indexrelid), indisunique, indisprimary, indisvalid, indisready, indisclustered,
                indisreplident, indnullsnotdistinct
           from pg_index i join pg_class c on c.oid = i.indrelid where c.relnamespace = 'once'::regnamespace",
    ),
    (
        "sequences",
        "select seqrelid::regclass, seqtypid::regtype, seqstart, seqincrement, seqmin, seqmax, seqcache, seqcycle from pg_sequence s
           join pg_class c on c.oid = s.seqrelid where c.relnamespace = 'once'::regnamespace",
    ),
    (
        "types",
        "select t.typname, t.typtype, t.typcategory, t.typowner::regrole, t.typacl, obj_description(t.oid, 'pg_type'),
                (select string_agg(e.enumlabel, ',' order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid)
           from pg_type t where t.typnamespace = 'once'::regnamespace",
    ),
    (
        "schema",
        "select nspowner::regrole, nspacl, obj_description(oid, 'pg_namespace') from pg_namespace where nspname = 'once'",
    ),
    (
        "rights that a dump leaves out",
        "select pg_describe_object(i.classoid, i.objoid, i.objsubid), i.privtype,
                (select string_agg(a::text, ',' order by a::text) from unnest(i.initprivs) a)
           from pg_init_privs i join pg_depend d on d.classid = i.classoid and d.objid = i.objoid and d.deptype = 'e'
                join pg_extension e on e.oid = d.refobjid and e.extname = 'pg_once' and d.refclassid = 'pg_extension'::regclass",
    ),
    (
        "else",
        "select 'trigger', tgname::text from pg_trigger t join pg_class c on c.oid = tgrelid where c.relnamespace = 'once'::regnamespace
         union all select 'rule', pg_get_ruledef(r.oid) from pg_rewrite r join pg_class c on c.oid = ev_class
          where c.relnamespace = 'once'::regnamespace
         union all select 'policy', polname::text from pg_policy join pg_class c on c.oid = polrelid
          where c.relnamespace = 'once'::regnamespace
         union all select 'statistics', pg_get_statisticsobjdef(s.oid) from pg_statistic_ext s
          where stxnamespace = 'once'::regnamespace
         union all select 'operator', oid::regoperator::text from pg_operator where oprnamespace = 'once'::regnamespace
         union all select 'event trigger', evtname::text from pg_event_trigger",
    ),
    (
        "kinds",
        "select kind, function_name from once.role_function",
    ),
];

/// Everything that the catalogs say of the extension in this database, line by line.
pub async fn catalog(play: &Playground) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (what, query) in CATALOG {
        let lines = play
            .show(&format!("select row_to_json(x)::text from ({query}) x"))
            .await;
        assert!(
            what == "else" || what == "types" || what == "sequences" || !lines.is_empty(),
            "{what}"
        );
        all.extend(lines.lines().map(|line| format!("{what}: {line}")));
    }
    let rows = rows_except(play, &["role_function"]).await;
    all.extend(rows.lines().map(|line| format!("rows: {line}")));
    all
}

/// Every row of every table of the extension but these, a line for each table. (Not by query_to_xml: not every
/// server is built with it.)
pub async fn rows_except(play: &Playground, tables: &[&str]) -> String {
    let tables = tables.join("', '");
    let each = play
        .show(&format!(
            "select string_agg(format('select %L || coalesce(string_agg(t::text, ''; '' order by t::text), '''') as told from once.%I t',
                                      relname || ': ', relname), ' union all ')
               from pg_class
              where relnamespace = 'once'::regnamespace and relkind = 'r' and relname not in ('{tables}')"
        ))
        .await;
    play.show(&format!("{each} order by 1")).await
}

/// What one has and the other has not, in a form for people.
pub fn differences(expected: &BTreeSet<String>, found: &BTreeSet<String>) -> String {
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>, sign: &str| {
        let lines = a.difference(b).map(|line| format!("{sign} {line}\n"));
        lines.collect::<String>()
    };
    only(expected, found, "-") + &only(found, expected, "+")
}

async fn new() -> Playground {
    let play = empty().await;
    play.show("create extension pg_once").await;
    play
}

#[tokio::test]
async fn an_upgraded_schema_is_the_same_as_a_new_one() {
    let (fresh, upgraded) = (new().await, old().await);
    let before = catalog(&upgraded).await;
    let expected = catalog(&fresh).await;
    assert!(
        !differences(&expected, &before).is_empty(),
        "0.1.0 differs from what is here, so the comparison sees differences"
    );
    update(&upgraded).await;
    let found = catalog(&upgraded).await;
    assert_eq!(
        differences(&expected, &found),
        "",
        "- a new one has it, + the upgraded one"
    );
}

#[tokio::test]
async fn default_privileges_open_nothing_in_a_new_schema_nor_in_an_upgraded_one() {
    let (fresh, upgraded) = (empty().await, empty().await);
    for play in [&fresh, &upgraded] {
        play.ensure_role("upgrade_greedy").await;
        for what in ["tables", "sequences", "routines", "schemas", "types"] {
            play.show(&format!(
                "alter default privileges grant all on {what} to upgrade_greedy, public"
            ))
            .await;
        }
    }
    fresh.show("create extension pg_once").await;
    create_old(&upgraded).await;
    upgraded.show(UPDATE).await;
    // Types of tables have rights of their own, which open no table.
    let closed = |lines: BTreeSet<String>| -> BTreeSet<String> {
        let lines = lines.into_iter();
        lines.filter(|line| !line.starts_with("types: ")).collect()
    };
    let (expected, found) = (
        closed(catalog(&fresh).await),
        closed(catalog(&upgraded).await),
    );
    assert_eq!(differences(&expected, &found), "");
    for line in expected.iter().filter(|line| !line.starts_with("rights")) {
        assert!(!line.contains("upgrade_greedy"), "{line}");
    }
}

#[tokio::test]
async fn an_update_that_is_rolled_back_leaves_the_old_schema_and_can_be_done_again() {
    let play = old().await;
    let before = catalog(&play).await;
    let session = play.another().await;
    session.show(&format!("begin; {UPDATE}")).await;
    assert_eq!(version(&session).await, env!("CARGO_PKG_VERSION"));
    session.show("rollback").await;
    assert_eq!(differences(&before, &catalog(&play).await), "");
    crate::tour::tour(&play, "after the rollback").await;
    session
        .show(&format!("begin; savepoint s; {UPDATE}; rollback to s"))
        .await;
    session.show(&format!("{UPDATE}; commit")).await;
    assert_eq!(version(&play).await, env!("CARGO_PKG_VERSION"));
    // Twice is once.
    session.show(UPDATE).await;
    session
        .show(&format!(
            "alter extension pg_once update to '{}'",
            env!("CARGO_PKG_VERSION")
        ))
        .await;
    let back = session
        .code("alter extension pg_once update to '0.1.0'")
        .await;
    assert_eq!(back, "22023", "there is no way back");
    let fresh = new().await;
    // The tour left rows, and an explicit list of the owner's own rights.
    let skip = |lines: BTreeSet<String>| -> BTreeSet<String> {
        let of_the_tour =
            |line: &String| line.starts_with("rows: ") || line.starts_with("schema: ");
        lines
            .into_iter()
            .filter(|line| !of_the_tour(line))
            .collect()
    };
    let (expected, found) = (skip(catalog(&fresh).await), skip(catalog(&play).await));
    assert_eq!(differences(&expected, &found), "");
}

#[tokio::test]
async fn what_another_superuser_updates_still_belongs_to_the_extensions_owner() {
    let play = old().await;
    play.ensure_role("upgrade_dba superuser login").await;
    play.another_as("upgrade_dba").await.show(UPDATE).await;
    let fresh = new().await;
    let (expected, found) = (catalog(&fresh).await, catalog(&play).await);
    assert_eq!(differences(&expected, &found), "");
}
