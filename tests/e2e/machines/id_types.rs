//! Functions that take a row's id have two forms: text, and anything that prints as one value. Whatever a driver
//! sends, the server finds one of them.

use tokio_postgres::types::{ToSql, Type};

use crate::playground::Playground;
use crate::world::{jobs, world};

const TYPES: &str = "
    create domain whole as int; create domain word as text;
    create type label as enum ('4711', '4712'); create type pair as (a int, b int)";

/// Spellings of one id.
const SPELLINGS: &[&str] = &[
    "'4711'",
    "'4711'::text",
    "'4711'::varchar",
    "'4711'::char(6)",
    "'4711'::name",
    "'4711'::word",
    "4711",
    "4711::smallint",
    "4711::bigint",
    "4711::numeric",
    "4711::float8",
    "4711::whole",
    "'4711'::label",
    "(select id from job)",
    "(select id::text from job)",
    "(select '4711')",
];

async fn opened() -> Playground {
    let play = world().await;
    play.show(TYPES).await;
    jobs(&play, 4711, 4711, "new").await;
    play
}

#[tokio::test]
async fn a_row_is_found_by_every_type_of_id_that_prints_as_its_own() {
    let play = opened().await;
    for id in SPELLINGS {
        for call in [
            "('job', $, 'ready')",
            "('job', $, 'ready', array['new'])",
            "('job', $, 'ready', null, null, null, null)",
            "('job'::text, $, 'ready'::text, array['new']::text[], '{}'::json, 'me'::text)",
            "(machine => 'job', id => $, to_status => 'ready')",
            "('job', $, requester => 'me', to_status => 'ready'::varchar)",
        ] {
            let call = call.replace('$', id);
            play.show("begin").await;
            let sql = format!("select moved, status from once.transition{call}");
            assert_eq!(play.show(&sql).await, "t|ready", "{call}");
            play.show("rollback").await;
        }
    }
}

#[tokio::test]
async fn a_citext_is_an_id() {
    let play = opened().await;
    if play.attempt("create extension citext").await.is_err() {
        return;
    }
    let move_it = "select moved from once.transition('job', '4711'::citext, 'ready')";
    assert_eq!(play.show(move_it).await, "t");
}

#[tokio::test]
async fn a_uuid_a_date_and_a_number_are_ids_of_columns_that_print_them_alike() {
    let play = Playground::open().await;
    let uuid = "'A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid";
    for (column, id) in [
        ("uuid", uuid),
        ("text", uuid),
        ("text", "date '2030-01-02'"),
        ("varchar(20)", "1.50::numeric"),
    ] {
        play.show(&format!(
            "create table t (id {column} primary key, status text not null default 'a');
             insert into t values ({id});
             select once.machine_define('{{\"machine\": \"t\", \"table\": \"t\", \"id\": \"id\", \"status\": \"status\",
                 \"status_types\": [\"a\", \"b\"], \"transitions\": [{{\"from\": [\"a\"], \"to\": \"b\"}}]}}')"
        ))
        .await;
        let moved = format!("select moved from once.transition('t', {id}, 'b')");
        assert_eq!(play.show(&moved).await, "t", "{column}, {id}");
        play.show("select once.machine_drop('t'); drop table t")
            .await;
    }
}

/// What drivers send: a number as it is, or a text without a type.
#[tokio::test]
async fn a_parameter_is_an_id_whatever_type_it_is_sent_as() {
    let play = opened().await;
    let numbers: [(&(dyn ToSql + Sync), Type); 3] = [
        (&4711_i16, Type::INT2),
        (&4711_i32, Type::INT4),
        (&4711_i64, Type::INT8),
    ];
    let texts = [Type::TEXT, Type::VARCHAR, Type::BPCHAR, Type::UNKNOWN];
    let texts = texts.map(|of| (&"4711" as &(dyn ToSql + Sync), of));
    for (id, of) in numbers.into_iter().chain(texts) {
        for sql in [
            "select moved from once.transition('job', $1, 'ready')",
            "select moved from once.transition('job', id => $1, to_status => 'ready', version => 0)",
        ] {
            play.show("begin").await;
            let row = play.client.query_typed(sql, &[(id, of.clone())]).await;
            assert!(row.unwrap()[0].get::<_, bool>(0), "{of}");
            play.show("rollback").await;
        }
    }
}

/// Every function with an `id`, with each number of arguments that it takes.
#[tokio::test]
async fn no_call_with_an_id_is_ambiguous() {
    let play = opened().await;
    let forms = play
        .show(
            "select proname, pronargs, pronargdefaults, array_to_string(proargtypes::regtype[], ',')
               from pg_proc where pronamespace = 'once'::regnamespace and proargtypes[1] = '\"any\"'::regtype",
        )
        .await;
    assert_eq!(forms.lines().count(), 14, "{forms}");
    for form in forms.lines() {
        let [name, most, defaults, types] = form.split('|').collect::<Vec<_>>()[..] else {
            panic!("{form}");
        };
        let types: Vec<_> = types.split(',').collect();
        let (most, defaults): (usize, usize) = (most.parse().unwrap(), defaults.parse().unwrap());
        for count in most - defaults..=most {
            for id in SPELLINGS.iter().chain(&["null", "null::text", "null::int"]) {
                for typed in [false, true] {
                    let more = types[2..count].iter().map(|of| match typed {
                        true => format!(", null::{of}"),
                        false => ", null".to_owned(),
                    });
                    let arguments: String = more.collect();
                    let call = format!("select * from once.{name}('job', {id}{arguments})");
                    if let Err(refusal) = play.attempt(&call).await {
                        let known =
                            ["22023", "ON001", "ON002", "ON005"].contains(&refusal.code.as_str());
                        assert!(known, "{call}: {refusal:?}");
                    }
                }
            }
        }
    }
    play.ask("select * from once.cancel_audit('job')")
        .is("")
        .await;
    jobs(&play, 1, 1, "new").await;
    let many = "select id, moved from once.transition_many('job', '{1, 2}', 'ready')";
    assert_eq!(play.show(many).await, "1|t\n2|f");
}

#[tokio::test]
async fn an_array_or_a_row_is_no_id_and_the_hint_names_transition_many() {
    let play = opened().await;
    for id in [
        "array[4711]",
        "'{4711}'::text[]",
        "row(4711, 1)",
        "row(1, 2)::pair",
        "(select j from job j)",
    ] {
        let call = format!("select * from once.transition('job', {id}, 'ready')");
        let refusal = play.refused(&call).await;
        assert_eq!(refusal.code, "22023", "{id}");
        assert!(refusal.message.contains("\"id\""), "{refusal:?}");
        assert!(refusal.hint.contains("transition_many"), "{refusal:?}");
    }
}
