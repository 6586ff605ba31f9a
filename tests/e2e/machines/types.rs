//! The same life of a row over every type of id and status, and over names that need every care.

use crate::playground::Playground;
use crate::world::define;

/// SQL names of a machine's table and its columns, and how its values are spelled.
struct Shape {
    setup: String,
    table: String,
    id: String,
    status: String,
    machine: String,
    /// new, ready, running, done
    statuses: [String; 4],
    ids: [String; 2],
}

impl Shape {
    fn plain(id_type: &str, status_type: &str, ids: [&str; 2]) -> Shape {
        Shape {
            setup: format!(
                "create table t (id {id_type} primary key, status {status_type} not null, version bigint not null default 0)"
            ),
            table: "t".to_owned(),
            id: "id".to_owned(),
            status: "status".to_owned(),
            machine: "m".to_owned(),
            statuses: ["new", "ready", "running", "done"].map(str::to_owned),
            ids: ids.map(str::to_owned),
        }
    }

    fn definition(&self) -> String {
        let json = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let [new, ready, running, done] = self.statuses.each_ref().map(|s| json(s));
        format!(
            r#"{{"machine": {}, "table": {}, "id": {}, "status": {}, "version": "version",
                "status_types": [{new}, {ready}, {running}, {done}], "terminal": [{done}],
                "transitions": [{{"from": [{new}], "to": {ready}}}, {{"from": [{ready}], "to": {new}}}],
                "steps": [{{"step_key": "st'e\"p", "status": {ready}, "claim_state": {{"*": [{running}, {ready}]}},
                           "successful_state": {{"*": {done}}}}}]}}"#,
            json(&self.machine),
            json(&self.table),
            json(&self.id),
            json(&self.status),
        )
    }

    /// Defines the machine and takes two rows through everything.
    async fn live(&self, play: &Playground) {
        let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
        play.show(&self.setup).await;
        define(play, &self.definition()).await;
        let machine = literal(&self.machine);
        let [new, ready, running, done] = self.statuses.each_ref().map(|s| literal(s));
        let (id, status, table) = (quote(&self.id), quote(&self.status), &self.table);
        let step = "'st''e\"p'";
        let one = async |sql: String| play.show(&sql).await;
        for guarded in [false, true] {
            one(format!("delete from {table}")).await;
            one(format!("select once.machine_guard({machine}, {guarded})")).await;
            for key in &self.ids {
                one(format!(
                    "insert into {table} ({id}, {status}) values ({}, {new})",
                    literal(key)
                ))
                .await;
            }
            let [first, second] = self.ids.each_ref().map(|s| literal(s));
            let shown = one(format!(
                "select moved, status, reason from once.transition({machine}, {first}, {ready}, array[{new}])"
            ))
            .await;
            assert_eq!(shown, format!("t|{}|~", self.statuses[1]));
            let shown = one(format!(
                "select count(*) filter (where moved), string_agg(reason, ',')
                   from once.transition_many({machine}, array[{second}, {first}, {second}], {ready})"
            ))
            .await;
            assert_eq!(shown, "1|status");
            let claim = |key: &str| {
                format!(
                    "select outcome, token from once.action_claim({machine}, {key}, {step}, lease => '1 h')"
                )
            };
            let shown = one(claim(&first)).await;
            let (outcome, token) = shown.split_once('|').unwrap();
            assert_eq!(outcome, "claimed");
            let shown = one(format!(
                "select status from once.transition({machine}, {first}, {new})"
            ))
            .await;
            assert_eq!(shown, self.statuses[2]);
            let shown = one(format!(
                "select cancelling from once.action_extend({machine}, {first}, {token}, '1 h')"
            ))
            .await;
            assert_eq!(shown, "f");
            let shown = one(format!(
                "select status from once.action_release({machine}, {first}, {token})"
            ))
            .await;
            assert_eq!(shown, self.statuses[1]);
            let shown = one(claim(&first)).await;
            let (_, token) = shown.split_once('|').unwrap();
            let shown = one(format!(
                "select outcome, status from once.action_finish({machine}, {first}, {token})"
            ))
            .await;
            assert_eq!(shown, format!("finished|{}", self.statuses[3]));
            one(format!(
                "select * from once.action_claim({machine}, {second}, {step}, lease => '1 us')"
            ))
            .await;
            let shown = one(format!(
                "select done, failed from once.sweep(10, 'action_release', {machine})"
            ))
            .await;
            assert_eq!(shown, "1|0");
            let shown = one(format!(
                "select string_agg({status}::text, ',' order by {status}::text) = (select string_agg(s, ',' order by s)
                   from unnest(array[{ready}, {done}]) as s(s)), bool_or({status}::text = {running}) from {table}"
            ))
            .await;
            assert_eq!(shown, "t|f");
            let shown = one(format!(
                "select coalesce(string_agg(problem, ';'), 'fine') from once.machine_check({machine})"
            ))
            .await;
            assert_eq!(shown, "fine");
        }
        // What is stored can be defined again.
        let again = one(format!(
            "select once.machine_get(m)::text = once.machine_define(once.machine_get(m))::text from (values ({machine})) as v(m)"
        ))
        .await;
        assert_eq!(again, "t");
        one(format!("select once.machine_drop({machine})")).await;
    }
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[tokio::test]
async fn ids_of_every_type_live_alike() {
    let uuids = [
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "00000000-0000-0000-0000-000000000000",
    ];
    for (id, ids) in [
        ("int", ["1", "-2"]),
        ("bigint", ["1", "9223372036854775807"]),
        ("smallint", ["1", "32767"]),
        ("text", ["a", "B c"]),
        ("varchar", ["a", "b"]),
        ("varchar(5)", ["abcde", "b"]),
        ("uuid", uuids),
        ("text collate \"C\"", ["a", "b"]),
    ] {
        let play = Playground::open().await;
        println!("id {id}");
        Shape::plain(id, "text", ids).live(&play).await;
    }
}

#[tokio::test]
async fn ids_of_domains_live_alike() {
    let play = Playground::open().await;
    play.show(
        "create domain job_no as bigint check (value > 0); create domain code as varchar(10)",
    )
    .await;
    Shape::plain("job_no", "text", ["1", "2"]).live(&play).await;
    play.show("drop table t").await;
    Shape::plain("code", "text", ["a", "b"]).live(&play).await;
}

#[tokio::test]
async fn statuses_of_every_type_live_alike() {
    for status in [
        "text",
        "varchar",
        "varchar(7)",
        "st",
        "dt",
        "de",
        "text collate \"C\"",
    ] {
        let play = Playground::open().await;
        play.show(
            "create type st as enum ('new', 'ready', 'running', 'done');
             create domain dt as text check (value in ('new', 'ready', 'running', 'done'));
             create domain de as st",
        )
        .await;
        println!("status {status}");
        Shape::plain("bigint", status, ["1", "2"]).live(&play).await;
    }
}

#[tokio::test]
async fn names_with_spaces_quotes_backslashes_and_other_letters_live_alike() {
    let play = Playground::open().await;
    let schema = quote("ev\"il Sché'ma; drop \\");
    let table = quote("weird.Na'me \"x\" \\ 🦀");
    let (id, status) = ("I D\"'\\", "Sta;tus\"'\\ü");
    let shape = Shape {
        setup: format!(
            "create schema {schema}; create table {schema}.{table} ({} int primary key, {} text not null, version bigint not null default 0)",
            quote(id),
            quote(status)
        ),
        table: format!("{schema}.{table}"),
        id: id.to_owned(),
        status: status.to_owned(),
        machine: "The m'ach\"ine \\ ü 🦀".to_owned(),
        statuses: ["it's new", "\"ready\"", "run\\ning %s $1", "done 🦀"].map(str::to_owned),
        ids: ["1", "2"].map(str::to_owned),
    };
    shape.live(&play).await;
    play.show(&format!("drop schema {schema} cascade")).await;
}

#[tokio::test]
async fn enum_labels_with_odd_letters_are_statuses() {
    let play = Playground::open().await;
    let shape = Shape {
        setup: "create type odd as enum ('it''s', 'A b', 'a,b{}', 'ü\"'); create table t
                (id int primary key, status odd not null, version bigint not null default 0)"
            .to_owned(),
        statuses: ["it's", "A b", "a,b{}", "ü\""].map(str::to_owned),
        ..Shape::plain("int", "odd", ["1", "2"])
    };
    shape.live(&play).await;
}

#[tokio::test]
async fn a_table_in_the_search_path_of_nobody_lives_alike() {
    let play = Playground::open().await;
    let shape = Shape {
        setup: "create schema of_nobody; create type of_nobody.st as enum ('new', 'ready', 'running', 'done');
                create table of_nobody.t (id int primary key, status of_nobody.st not null, version bigint not null default 0)"
            .to_owned(),
        table: "of_nobody.t".to_owned(),
        ..Shape::plain("int", "text", ["1", "2"])
    };
    for path in ["public", "\"$user\"", "''", "pg_temp, once"] {
        let session = play.another().await;
        session.show(&format!("set search_path = {path}")).await;
        shape.live(&session).await;
        session.show("drop schema of_nobody cascade").await;
    }
}

#[tokio::test]
async fn two_machines_over_two_status_columns_of_one_table_do_not_disturb_each_other() {
    let play = Playground::open().await;
    play.show(
        "create table t (id int primary key, pay text not null default 'open', ship text not null default 'open')",
    )
    .await;
    for column in ["pay", "ship"] {
        define(
            &play,
            &format!(
                r#"{{"machine": "{column}", "table": "t", "id": "id", "status": "{column}",
                    "status_types": ["open", "busy", "done"], "terminal": ["done"],
                    "steps": [{{"step_key": "do", "status": "open", "claim_state": {{"*": ["busy", "open"]}},
                               "successful_state": {{"*": "done"}}}}]}}"#
            ),
        )
        .await;
        play.show(&format!("select once.machine_guard('{column}', true)"))
            .await;
    }
    play.show("insert into t values (1)").await;
    let claim = async |machine: &str| {
        play.show(&format!(
            "select outcome, token from once.action_claim('{machine}', '1', 'do')"
        ))
        .await
    };
    let pay = claim("pay").await;
    let ship = claim("ship").await;
    let (pay, ship) = (
        pay.strip_prefix("claimed|").unwrap(),
        ship.strip_prefix("claimed|").unwrap(),
    );
    play.ask(&format!(
        "select status from once.action_finish('pay', '1', {pay})"
    ))
    .is("done")
    .await;
    assert_eq!(play.show("select pay, ship from t").await, "done|busy");
    play.ask(&format!(
        "select status from once.action_release('ship', '1', {ship})"
    ))
    .is("open")
    .await;
    assert_eq!(play.show("select pay, ship from t").await, "done|open");
    let refusal = play.refused("update t set ship = 'busy'").await;
    assert_eq!(refusal.code, "ON002", "{refusal:?}");
    let refusal = play.refused("update t set pay = 'open'").await;
    assert_eq!(refusal.code, "ON002", "{refusal:?}");
}
