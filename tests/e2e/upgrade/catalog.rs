//! A database that was upgraded is the same as a new one: every object, column, right, comment and what a dump
//! leaves out.

use std::collections::BTreeSet;

use crate::next::{NEXT, PRESENT, UPDATE, empty, fresh, old, update, version};
use crate::playground::Playground;

/// What there is to compare: below each name a query, which gives a line for each thing. (`pg_attver` is a note of some
/// servers' own, another one in each database.)
const CATALOG: &str = "
# extension
select extname, extversion, extrelocatable, extowner::regrole, extnamespace::regnamespace from pg_extension
 where extname = 'pg_once'
# members
select pg_describe_object(d.classid, d.objid, d.objsubid) from pg_depend d join pg_extension e on e.oid = d.refobjid
 where e.extname = 'pg_once' and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'
# tables to dump
select c.oid::regclass, c.condition from pg_extension e, unnest(e.extconfig, e.extcondition) c(oid, condition)
 where e.extname = 'pg_once'
# routines
select p.oid::regprocedure, p.prokind, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), p.provolatile,
       p.proparallel, p.proisstrict, p.prosecdef, p.proleakproof, p.proretset, p.prorows, p.procost, p.proconfig, l.lanname,
       case p.proname when 'incarnation' then '' else p.prosrc end, p.probin, p.prosqlbody is null, p.prosupport, p.proowner::regrole, p.proacl, obj_description(p.oid, 'pg_proc')
  from pg_proc p join pg_language l on l.oid = p.prolang where p.pronamespace = 'once'::regnamespace
# relations
select c.relname, c.relkind, c.relpersistence, c.reloptions, t.reloptions, c.reltoastrelid <> 0, a.amname, c.relowner::regrole,
       c.relacl, c.relrowsecurity, c.relforcerowsecurity, c.relreplident, c.relnatts, c.relchecks, c.relhastriggers, c.relhasrules,
       c.reltablespace, obj_description(c.oid, 'pg_class')
  from pg_class c left join pg_class t on t.oid = c.reltoastrelid left join pg_am a on a.oid = c.relam
 where c.relnamespace = 'once'::regnamespace
# columns
select c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attisdropped, a.attidentity,
       a.attgenerated, a.attcollation::regcollation, a.attstorage, a.attcompression, nullif(a.attstattarget, -1),
       (select array_agg(o) from unnest(a.attoptions) o where o not like 'pg_attver=%'),
       a.attacl, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
       left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
 where c.relnamespace = 'once'::regnamespace
# constraints
select conrelid::regclass, conname, contype, convalidated, pg_get_constraintdef(oid), obj_description(oid, 'pg_constraint')
  from pg_constraint where connamespace = 'once'::regnamespace
# indexes
select indexrelid::regclass, pg_get_indexdef(indexrelid), indisunique, indisprimary, indisvalid, indisready, indisclustered,
       indisreplident, indnullsnotdistinct
  from pg_index i join pg_class c on c.oid = i.indrelid where c.relnamespace = 'once'::regnamespace
# sequences
select seqrelid::regclass, seqtypid::regtype, seqstart, seqincrement, seqmin, seqmax, seqcache, seqcycle from pg_sequence s
  join pg_class c on c.oid = s.seqrelid where c.relnamespace = 'once'::regnamespace
# types
select t.typname, t.typtype, t.typcategory, t.typowner::regrole, t.typacl, obj_description(t.oid, 'pg_type'),
       (select string_agg(e.enumlabel, ',' order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid)
  from pg_type t where t.typnamespace = 'once'::regnamespace
# schema
select nspowner::regrole, nspacl, obj_description(oid, 'pg_namespace') from pg_namespace where nspname = 'once'
# rights that a dump leaves out
select pg_describe_object(i.classoid, i.objoid, i.objsubid), i.privtype,
       (select string_agg(a::text, ',' order by a::text) from unnest(i.initprivs) a)
  from pg_init_privs i join pg_depend d on d.classid = i.classoid and d.objid = i.objoid and d.deptype = 'e'
       join pg_extension e on e.oid = d.refobjid and e.extname = 'pg_once' and d.refclassid = 'pg_extension'::regclass
# else
select 'trigger', tgname::text from pg_trigger t join pg_class c on c.oid = tgrelid where c.relnamespace = 'once'::regnamespace
union all select 'rule', pg_get_ruledef(r.oid) from pg_rewrite r join pg_class c on c.oid = ev_class
 where c.relnamespace = 'once'::regnamespace
union all select 'policy', polname::text from pg_policy join pg_class c on c.oid = polrelid
 where c.relnamespace = 'once'::regnamespace
union all select 'statistics', pg_get_statisticsobjdef(s.oid) from pg_statistic_ext s
 where stxnamespace = 'once'::regnamespace
union all select 'operator', oid::regoperator::text from pg_operator where oprnamespace = 'once'::regnamespace
union all select 'event trigger', evtname::text from pg_event_trigger
# kinds
select kind, function_name from once.role_function";

/// Everything that the catalogs say of the extension in this database, line by line.
async fn catalog(play: &Playground) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for part in CATALOG.split("\n# ").skip(1) {
        let (what, query) = part.split_once('\n').unwrap();
        let lines = play
            .show(&format!("select row_to_json(x)::text from ({query}) x"))
            .await;
        assert!(
            what == "else" || what == "types" || what == "sequences" || !lines.is_empty(),
            "{what}"
        );
        all.extend(lines.lines().map(|line| format!("{what}: {line}")));
    }
    all
}

/// What one has and the other has not, in a form for people.
fn differences(expected: &BTreeSet<String>, found: &BTreeSet<String>) -> String {
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>, sign: &str| {
        let lines = a.difference(b).map(|line| format!("{sign} {line}\n"));
        lines.collect::<String>()
    };
    only(expected, found, "-") + &only(found, expected, "+")
}

#[tokio::test]
async fn an_upgraded_schema_is_the_same_as_a_new_one_whoever_updated_it() {
    let (fresh, upgraded, by_another) = (fresh().await, old().await, old().await);
    let expected = catalog(&fresh).await;
    let before = differences(&expected, &catalog(&upgraded).await);
    assert!(
        before.contains("remark") && before.contains("key_next"),
        "the comparison sees no difference: {before}"
    );
    update(&upgraded).await;
    by_another.ensure_role("upgrade_dba superuser login").await;
    let dba = by_another.another_as("upgrade_dba").await;
    dba.show(UPDATE).await;
    for play in [&upgraded, &by_another] {
        let found = catalog(play).await;
        assert_eq!(
            differences(&expected, &found),
            "",
            "- a new one has it, + the upgraded one"
        );
    }
}

#[tokio::test]
async fn default_privileges_open_nothing_in_a_new_schema_nor_in_an_upgraded_one() {
    let present = format!("create extension pg_once version '{PRESENT}'; {UPDATE}");
    let mut found = Vec::new();
    for create in ["create extension pg_once version 'next'", &present] {
        let play = empty().await;
        play.ensure_role("upgrade_greedy").await;
        for what in ["tables", "sequences", "routines", "schemas", "types"] {
            play.show(&format!(
                "alter default privileges grant all on {what} to upgrade_greedy, public"
            ))
            .await;
        }
        play.show(create).await;
        assert_eq!(version(&play).await, NEXT);
        // Types of tables have rights of their own, which open no table.
        let lines = catalog(&play).await.into_iter();
        let closed: BTreeSet<_> = lines.filter(|l| !l.starts_with("types: ")).collect();
        for line in closed.iter().filter(|line| !line.starts_with("rights")) {
            assert!(!line.contains("upgrade_greedy"), "{line}");
        }
        found.push(closed);
    }
    assert_eq!(differences(&found[0], &found[1]), "");
}

#[tokio::test]
async fn an_update_that_waits_too_long_leaves_the_old_schema_and_can_be_done_again() {
    let play = old().await;
    let before = catalog(&play).await;
    let caller = play.another().await;
    caller.show("begin; select once.scope_set('s', '{}')").await;
    let dba = play.another().await;
    dba.show("set lock_timeout = '100 ms'").await;
    assert_eq!(dba.code(UPDATE).await, "55P03");
    assert_eq!(differences(&before, &catalog(&play).await), "");
    caller
        .show("select once.scope_set('s', '{}'); commit")
        .await;
    // Once more it is rolled back; then it is done, and done again it does nothing.
    dba.show(&format!(
        "begin; savepoint s; {UPDATE}; rollback to s; {UPDATE}; commit; {UPDATE}"
    ))
    .await;
    let (expected, found) = (catalog(&fresh().await).await, catalog(&play).await);
    assert_eq!(differences(&expected, &found), "");
    let back = format!("alter extension pg_once update to '{PRESENT}'");
    assert_eq!(dba.code(&back).await, "22023", "there is no way back");
}

#[tokio::test]
async fn the_extension_does_not_go_with_the_schema_public() {
    let play = Playground::open().await;
    let token = play.token("kept", "").await;
    play.show("drop schema public cascade").await;
    play.show(&format!(
        "select once.key_complete('s', 'kept', {token}, 200)"
    ))
    .await;
    // And it needs no schema of that name.
    play.show("drop extension pg_once; create extension pg_once")
        .await;
    play.ask("select outcome from once.key_claim('s', 'kept')")
        .is("claimed")
        .await;
}
