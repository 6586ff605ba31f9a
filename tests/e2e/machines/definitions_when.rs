//! `when`: what a predicate may be, and that it is kept as a text that nobody can make mean something else.

use crate::cases::{cases, define, faults, open, right};
use crate::playground::{Playground, cluster};
use pg_once_tests::script::rows;
use serde_json::{Value, json};

const COLUMNS: &str = "alter table job add num numeric(10, 2), add at timestamptz, add v varchar(20), add tags text[],
    add doc jsonb, add \"Odd col\" int, add raw bytea, add span interval, add day date";

/// The predicate as it is kept.
async fn kept(play: &Playground, when: &str) -> String {
    let mut d = right();
    d["transitions"][0]["when"] = json!(when);
    let stored = play.show(&define(&d)).await;
    // What is kept is kept as it is when it is defined again.
    let stored: Value = serde_json::from_str(&stored).unwrap();
    let again = play.show(&define(&stored)).await;
    assert_eq!(
        serde_json::from_str::<Value>(&again).unwrap(),
        stored,
        "{when}"
    );
    stored["transitions"][0]["when"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn refused(play: &Playground, when: &str) -> String {
    let mut d = right();
    d["transitions"][0]["when"] = json!(when);
    let found = faults(play, when, &d).await;
    assert_eq!(found.len(), 1, "{when}: {found:?}");
    found[0]
        .strip_prefix("transitions[0].when: ")
        .unwrap()
        .to_owned()
}

/// A table of predicates, and what each is kept as.
async fn all_kept(play: &Playground, table: &str) {
    for [when, text] in rows(table) {
        assert_eq!(kept(play, when).await, text, "{when}");
    }
}

/// A table of predicates, and why each is refused.
async fn all_refused(play: &Playground, table: &str) {
    for [when, problem] in rows(table) {
        assert_eq!(refused(play, when).await, problem, "{when}");
    }
}

#[tokio::test]
async fn a_predicate_is_kept_with_every_name_qualified_and_every_cast_written_out() {
    let play = open().await;
    play.show(COLUMNS).await;
    play.show(
        "create schema \"Other\"; create type \"Other\".size as enum ('s', 'l'); alter table job add size \"Other\".size;
         create function \"Other\".\"May\"(int) returns boolean language sql immutable as 'select $1 > 0';
         set search_path = \"Other\", public",
    )
    .await;
    let table = r#"
        n > 0                          | (n OPERATOR(pg_catalog.>) 0)
        v = 'x' -- or not              | ((v)::pg_catalog.text OPERATOR(pg_catalog.=) 'x'::pg_catalog.text)
        /* a */ not n = -1             | (NOT (n OPERATOR(pg_catalog.=) '-1'::integer))
        size = 's'                     | (size OPERATOR(pg_catalog.=) 's'::"Other".size)
        "May"(n)                       | "Other"."May"(n)
        job."Odd col" is not null      | ("Odd col" IS NOT NULL)
        v in ('a', 'b')                | ((v)::pg_catalog.text OPERATOR(pg_catalog.=) ANY (ARRAY[('a'::character varying)::pg_catalog.text, ('b'::character varying)::pg_catalog.text]))
        note ilike 'A%'                | (note OPERATOR(pg_catalog.~~*) 'A%'::pg_catalog.text)
        num + n >= 1.50                | ((num OPERATOR(pg_catalog.+) (n)::numeric) OPERATOR(pg_catalog.>=) 1.50)
        tags @> '{x}'                  | (tags OPERATOR(pg_catalog.@>) '{x}'::pg_catalog.text[])
        doc->>'a' = 'b'                | ((doc OPERATOR(pg_catalog.->>) 'a'::pg_catalog.text) OPERATOR(pg_catalog.=) 'b'::pg_catalog.text)
        note collate "C" < 'x'         | ((note COLLATE pg_catalog."C") OPERATOR(pg_catalog.<) 'x'::pg_catalog.text)
        lower(note) = upper(v)         | (pg_catalog.lower(note) OPERATOR(pg_catalog.=) pg_catalog.upper((v)::pg_catalog.text))
        extract(year from day) > 2000  | (EXTRACT(year FROM day) OPERATOR(pg_catalog.>) (2000)::numeric)
        note = 'back\slash'            | (note OPERATOR(pg_catalog.=)  E'back\\slash'::pg_catalog.text)
        raw = '\x00'                   | (raw OPERATOR(pg_catalog.=)  E'\\x00'::pg_catalog.bytea)
        null                           | NULL::boolean
        note is distinct from v        | (note IS DISTINCT FROM (v)::pg_catalog.text)
        n is not distinct from 3       | (NOT (n IS DISTINCT FROM 3))
        nullif(n, 3) between 1 and 5   | ((NULLIF(n, 3) OPERATOR(pg_catalog.>=) 1) AND (NULLIF(n, 3) OPERATOR(pg_catalog.<=) 5))
        n not in (1, 2)                | (n OPERATOR(pg_catalog.<>) ALL (ARRAY[1, 2]))
        n is not distinct from null    | (n IS NULL)
        case when n = 1 then true else note = 'x' end | CASE WHEN (n OPERATOR(pg_catalog.=) 1) THEN true ELSE (note OPERATOR(pg_catalog.=) 'x'::pg_catalog.text) END"#;
    all_kept(&play, table).await;
    play.show("reset search_path; drop schema \"Other\" cascade")
        .await;
}

#[tokio::test]
async fn constants_mean_the_same_in_every_session() {
    let play = open().await;
    play.show(COLUMNS).await;
    play.show("set datestyle = 'German'; set timezone = 'Europe/Berlin'; set intervalstyle = 'iso_8601';
               set standard_conforming_strings = off; set escape_string_warning = off; set extra_float_digits = 0;
               set quote_all_identifiers = on; set bytea_output = escape")
        .await;
    let table = r"
        at > '03.02.2001 04:05'        | (at OPERATOR(pg_catalog.>) '2001-02-03 03:05:00+00'::timestamp with time zone)
        day = '03.02.2001'             | (day OPERATOR(pg_catalog.=) '2001-02-03'::pg_catalog.date)
        span > 'P1DT2H'                | (span OPERATOR(pg_catalog.>) '1 day 02:00:00'::interval)
        note = 'a\\b'                  | (note OPERATOR(pg_catalog.=)  E'a\\b'::pg_catalog.text)
        n::float8 > 0.1::float8        | ((n)::double precision OPERATOR(pg_catalog.>) (0.1)::double precision)";
    all_kept(&play, table).await;
}

#[tokio::test]
async fn what_is_no_single_expression_is_refused() {
    let play = open().await;
    play.show("create table witness (x int)").await;
    assert_eq!(refused(&play, "  ").await, "is empty");
    let table = r#"
        -- nothing                     | is empty
        n > 0, true                    | must be one expression
        *                              | must be one expression, not *
        n > 0 as x                     | must be an expression without a name for its result
        true; drop table witness       | syntax error at or near ";"
        ) or (true                     | syntax error at or near ")"
        true) or (true                 | syntax error at or near ")"
        true into witness              | syntax error at or near "into"
        true union select true         | syntax error at or near "union"
        select true                    | syntax error at or near "select"
        n := 1                         | syntax error at or near ":="
        $$; drop table witness; $$     | invalid input syntax for type boolean: "; drop table witness; "
        '                              | unterminated quoted string at or near "'"
        /* n > 0                       | unterminated /* comment at or near "/* n > 0""#;
    all_refused(&play, table).await;
    let problem = "must be an expression only, without any clause of a query";
    let clauses = "distinct true, n > 0 from job, true where true, true group by 1, true having true, true order by 1,
        true limit 1, true offset 1, true for update, true window w as ()";
    for when in clauses.split(',').map(str::trim) {
        assert_eq!(refused(&play, when).await, problem, "{when}");
    }
    assert_eq!(play.show("select count(*) from witness").await, "0");
}

#[tokio::test]
async fn what_a_check_constraint_may_not_have_is_refused_in_the_server_s_words() {
    let play = open().await;
    play.show(
        "create sequence s; create function by_default(x float8 default random()) returns boolean
            language plpgsql immutable as 'begin return x > 0.5; end'",
    )
    .await;
    let table = r#"
        nope = 1                       | column "nope" does not exist
        nope(n)                        | function nope(integer) does not exist
        item.id = 1                    | missing FROM-clause entry for table "item"
        $1                             | there is no parameter $1
        n                              | argument of when must be type boolean, not type integer
        (select true)                  | cannot use subquery in check constraint
        exists (select from item)      | cannot use subquery in check constraint
        n = any (select id from item)  | cannot use subquery in check constraint
        count(*) > 0                   | aggregate functions are not allowed in check constraints
        row_number() over () = 1       | window functions are not allowed in check constraints
        generate_series(1, n) = 1      | set-returning functions are not allowed in check constraints
        default                        | DEFAULT is not allowed in this context
        random() > 0.5                 | has "random()", which is not immutable
        nextval('s') > 0               | has "nextval('public.s'::regclass)", which is not immutable
        n > 0 or by_default()          | has "random()", which is not immutable
        job is not null                | names the whole row; name its columns
        job.* is not null              | names the whole row; name its columns
        tableoid = 0                   | names a system column
        ctid is not null               | system column "ctid" reference in check constraint is invalid"#;
    all_refused(&play, table).await;
}

#[tokio::test]
async fn a_generated_column_is_named_only_where_it_is_stored() {
    let play = open().await;
    play.show("alter table job add twice int generated always as (n * 2) stored")
        .await;
    let text = "(twice OPERATOR(pg_catalog.>) 0)";
    assert_eq!(kept(&play, "twice > 0").await, text);
    if cluster().version() < 18 {
        println!("virtual ones not run: this server has none");
        return;
    }
    play.show("alter table job add thrice int generated always as (n * 3) virtual")
        .await;
    let problem = "names a virtual generated column";
    for when in ["thrice > 0", "n > 0 and coalesce(thrice, n) is not null"] {
        assert_eq!(refused(&play, when).await, problem, "{when}");
    }
}

/// Each would mean something else at another time, or under another search_path, and is named.
#[tokio::test]
async fn what_is_not_immutable_or_compares_without_naming_an_operator_is_refused_by_name() {
    let play = open().await;
    play.show(COLUMNS).await;
    play.show(
        "create function look(n int) returns boolean language sql stable as 'select true';
         create function look(n int, m int) returns boolean language sql as 'select true';
         create operator =~ (function = look, leftarg = int, rightarg = int);
         create type money_of as (x numeric);
         create function same(money_of, money_of) returns boolean language sql immutable as 'select true';
         create operator = (function = same, leftarg = money_of, rightarg = money_of);
         alter table job add cost money_of",
    )
    .await;
    let table = r#"
        n > 0 and look(n)              | has "public.look(n)", which is not immutable
        n =~ 1                         | has "(n OPERATOR(public.=~) 1)", which is not immutable
        at < now()                     | has "now()", which is not immutable
        day = current_date             | has "CURRENT_DATE", which is not immutable
        note = current_user            | has "CURRENT_USER", which is not immutable
        at::date = day                 | has "(at)::date", which is not immutable
        at::text = note                | has "(at)::text", which is not immutable
        case n when 1 then true end    | has "CASE n WHEN 1 THEN true ELSE NULL::boolean END"; write CASE WHEN ... = ... THEN
        cost is distinct from row(1)::money_of | has "(cost IS DISTINCT FROM ROW((1)::numeric)::public.money_of)", which compares by public.=(public.money_of,public.money_of) without naming it
        nullif(cost, row(1)::money_of) is null | has "NULLIF(cost, ROW((1)::numeric)::public.money_of)", which compares by public.=(public.money_of,public.money_of) without naming it"#;
    all_refused(&play, table).await;
    // Of a refund, too; the operator may be named.
    let table = r#"
        # of a refund
        /refund/when = "state = current_user::text"
        ! refund.when: has "CURRENT_USER", which is not immutable"#;
    cases(&play, table).await;
    let text = "(cost OPERATOR(public.=) ROW((1)::numeric)::public.money_of)";
    assert_eq!(kept(&play, "cost = row(1)::money_of").await, text);
}

#[tokio::test]
async fn a_refused_predicate_leaves_the_transaction_and_its_settings_as_they_were() {
    let play = open().await;
    play.show("begin; set local search_path = public; set local datestyle = 'German'; savepoint s")
        .await;
    for when in ["nope = 1", "random() > 0", "n >", "n > 0; x"] {
        refused(&play, when).await;
        play.show("rollback to s").await;
        let settings = play
            .show(
                "select current_setting('search_path'), current_setting('datestyle'), current_user",
            )
            .await;
        assert_eq!(settings, "public|German, DMY|postgres");
    }
    let caught = "do $$ begin perform once.machine_define('{\"machine\": \"m\", \"table\": \"job\", \"id\": \"id\",
        \"status\": \"status\", \"status_types\": [\"a\"], \"transitions\": [{\"from\": [\"a\"], \"to\": \"a\", \"when\": \"nope\"}]}');
        exception when sqlstate 'ON003' then null; end $$";
    play.show(caught).await;
    kept(&play, "n > 0").await;
    play.ask("select current_setting('search_path'), current_setting('datestyle'), current_setting('standard_conforming_strings')")
        .is("public|German, DMY|on")
        .await;
    play.show("commit").await;
}
