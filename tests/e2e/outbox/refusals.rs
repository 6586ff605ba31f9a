//! Odd and bad input: what is refused, by which name, and that it changes nothing; what is allowed comes out as
//! it went in.

use crate::drain;
use crate::playground::Playground;
use crate::stage::Stage;

/// Everything that emits and takes write.
const ALL: &str = "
    select concat_ws(' ', (select count(*) from once.event_0), (select count(*) from once.event_kept),
                     (select count(*) from once.batch), (select count(*) from once.receipt),
                     (select count(*) from once.retry), (select count(*) from once.dedupe))";

async fn refused(play: &Playground, call: &str, code: &str, word: &str) {
    let before = play.show(ALL).await;
    let refusal = play.refused(&format!("select * from once.{call}")).await;
    refusal.tells(code, &[word], call);
    assert!(refusal.message.len() < 1_000, "{call}: {refusal:?}");
    assert_eq!(play.show(ALL).await, before, "{call}");
}

#[tokio::test]
async fn bad_arguments_of_an_emit_are_told_by_name() {
    let play = Playground::open().await;
    play.show(
        "select once.topic_set('t', '{}'), once.topic_set('nobody', '{\"subscribers\": []}')",
    )
    .await;
    for (arguments, code, word) in [
        ("null, '1'", "22023", "topic"),
        ("'', '1'", "22023", "topic"),
        ("repeat('x', 101), '1'", "22023", "topic"),
        ("'missing', '1'", "42704", "missing"),
        ("'T', '1'", "42704", "\"T\""),
        ("' t', '1'", "42704", "\" t\""),
        ("'nobody', '1'", "22023", "nobody"),
        ("'t', null", "22023", "payload"),
        ("'t', '1', ''", "22023", "order_key"),
        ("'t', '1', repeat('x', 256)", "22023", "order_key"),
        ("'t', '1', dedupe_key => ''", "22023", "dedupe_key"),
        (
            "'t', '1', dedupe_key => repeat('\u{e9}', 256)",
            "22023",
            "dedupe_key",
        ),
        ("'t', '1', headers => '[]'", "22023", "headers"),
        ("'t', '1', headers => '1'", "22023", "headers"),
        ("'t', '1', headers => '\"{}\"'", "22023", "headers"),
        ("'t', '1', headers => 'null'", "22023", "headers"),
        ("'t', '1', delay => '0'", "22023", "delay"),
        ("'t', '1', delay => '-1 s'", "22023", "delay"),
        ("'t', '1', delay => '1 month -31 days'", "22023", "delay"),
        ("'t', '1', delay => '290000 years'", "22023", "delay"),
        ("'t', '1', 'k', delay => '1 s'", "22023", "delay"),
    ] {
        refused(&play, &format!("outbox_emit({arguments})"), code, word).await;
    }
    for (arguments, code) in [
        // The server's own refusals: no such json, no such text.
        ("'t', '{'", "22P02"),
        ("'t', ''", "22P02"),
        ("'t', '1', E'a\\0b'", "22021"),
        ("E'\\0', '1'", "22021"),
        ("'t', E'\"\\0\"'", "22021"),
    ] {
        let sql = format!("select once.outbox_emit({arguments})");
        assert_eq!(play.code(&sql).await, code, "{sql}");
    }
}

#[tokio::test]
async fn bad_arguments_of_a_take_an_ack_and_an_extend_are_told_by_name() {
    let play = Playground::open().await;
    play.show("select once.topic_set('t', '{}'); select once.outbox_emit('t', '1'), once.outbox_emit('t', '2')")
        .await;
    for (arguments, code, word) in [
        ("null", "22023", "topic"),
        ("''", "22023", "topic"),
        ("'missing'", "42704", "missing"),
        ("'t', null", "22023", "subscriber"),
        ("'t', ''", "22023", "subscriber"),
        ("'t', repeat('x', 101)", "22023", "subscriber"),
        ("'t', 'missing'", "42704", "missing"),
        ("'t', max => null", "22023", "max"),
        ("'t', max => 0", "22023", "max"),
        ("'t', max => -1", "22023", "max"),
        ("'t', max => 10001", "22023", "max"),
        ("'t', max => -2147483648", "22023", "max"),
        ("'t', lease => '0'", "22023", "lease"),
        ("'t', lease => '-1 microsecond'", "22023", "lease"),
        ("'t', lease => '178000000 years'", "22023", "lease"),
    ] {
        refused(&play, &format!("outbox_take({arguments})"), code, word).await;
    }
    let token: i64 = play
        .show("select token from once.outbox_take('t', max => 1)")
        .await
        .parse()
        .unwrap();
    for call in ["ack", "extend"] {
        for (arguments, code, word) in [
            (format!("null, 'default', {token}"), "22023", "topic"),
            (format!("'missing', 'default', {token}"), "42704", "missing"),
            (format!("'t', null, {token}"), "22023", "subscriber"),
            (format!("'t', 'missing', {token}"), "42704", "missing"),
            ("'t', 'default', null".to_owned(), "22023", "token"),
            ("'t', 'default', 0".to_owned(), "ON001", "token"),
            ("'t', 'default', -1".to_owned(), "ON001", "token"),
            (
                "'t', 'default', 9223372036854775807".to_owned(),
                "ON001",
                "token",
            ),
            (format!("'t', 'default', {}", token - 1), "ON001", "token"),
        ] {
            refused(&play, &format!("outbox_{call}({arguments})"), code, word).await;
        }
    }
    for lease in ["0", "-1 s", "178000000 years"] {
        let call = format!("outbox_extend('t', 'default', {token}, '{lease}')");
        refused(&play, &call, "22023", "lease").await;
    }
    for ids in ["array[null]::bigint[]", "array[1, null]"] {
        let call = format!("outbox_ack('t', 'default', {token}, {ids})");
        refused(&play, &call, "22023", "event_ids").await;
    }
    let ack = format!("select once.outbox_ack('t', 'default', {token})");
    assert_eq!(play.show(&ack).await, "1");
}

#[tokio::test]
async fn ids_that_are_not_the_batchs_refuse_the_whole_ack() {
    let stage = Stage::open("{}").await;
    stage.emit("a b c d").await;
    let one = stage.take(2).await.token;
    let two = stage.take(1).await.token;
    let before = stage.stored().await;
    for (token, names) in [
        (one, "c"),
        (one, "a c"),
        (one, "d"),
        (two, "a"),
        (two, "c b"),
    ] {
        let sql = stage.ack_sql(token, names);
        assert_eq!(stage.play.code(&sql).await, "ON001", "{names}");
    }
    for ids in ["array[0]", "array[-1]", "array[9223372036854775807]"] {
        let sql = format!("select once.outbox_ack('t', 'default', {one}, {ids}::bigint[])");
        assert_eq!(stage.play.code(&sql).await, "ON001", "{ids}");
    }
    assert_eq!(stage.stored().await, before);
    // Arrays of more dimensions are read as what they hold.
    let (a, b) = (stage.id("a"), stage.id("b"));
    let sql =
        format!("select once.outbox_ack('t', 'default', {one}, array[[{a}], [{b}]]::bigint[])");
    assert_eq!(stage.play.show(&sql).await, "2");
}

#[tokio::test]
async fn odd_names_and_keys_are_told_apart_and_nothing_is_read_into_them() {
    let play = Playground::open().await;
    let long = "\u{1f980}".repeat(100);
    let names = [
        "a", "A", " ", " a", "a ", "'", "\"", "a.b", "%", "\\", "null", "\t\n", "\u{e9}",
        "e\u{301}", "\u{feff}", "--", "$1", "$$", &long,
    ];
    let quoted = |name: &str| format!("'{}'", name.replace('\'', "''"));
    for name in names {
        let sql = format!("select once.topic_set({}, '{{}}')", quoted(name));
        play.show(&sql).await;
    }
    for (i, name) in names.iter().enumerate() {
        let name = quoted(name);
        let sql = format!(
            "select once.outbox_emit({name}, '{i}', {name}, {name}, json_build_object({name}, {name}))"
        );
        play.show(&sql).await;
    }
    for (i, name) in names.iter().enumerate() {
        let sql = format!(
            "select payload, order_key = {0}, headers ->> {0} = {0} from once.outbox_take({0})",
            quoted(name)
        );
        assert_eq!(play.show(&sql).await, format!("{i}|t|t"), "{name:?}");
    }
}

#[tokio::test]
async fn payloads_and_headers_come_byte_for_byte_however_large() {
    let play = Playground::open().await;
    play.show("select once.topic_set('t', '{}')").await;
    let payloads = [
        "null",
        "  { \"b\" : 1.00e2 ,\n\t\"a\":1,\"a\":2 } ",
        "\"\\u0000\"",
        "\"\\ud83e\\udd80 \u{1f980}\"",
        "123456789012345678901234567890.000",
        "[]",
    ];
    for payload in payloads {
        let sql =
            format!("select once.outbox_emit('t', '{payload}', headers => ' {{ \"h\":  1 }}')");
        play.show(&sql).await;
    }
    let rows = play
        .client
        .query(
            "select token, payload::text, headers::text from once.outbox_take('t', max => 100)",
            &[],
        )
        .await
        .unwrap();
    let texts: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
    assert_eq!(texts, payloads);
    assert!(rows.iter().all(|r| r.get::<_, &str>(2) == " { \"h\":  1 }"));
    // 10 MB that compress and 10 MB that do not.
    play.show(
        "select once.outbox_emit('t', to_json(repeat('x', 10000000)), 'k');
         select once.outbox_emit('t', to_json(string_agg(md5(i::text), '')), 'k') from generate_series(1, 327680) i",
    )
    .await;
    let rows = play
        .show("select octet_length(payload::text), md5(payload::text) from once.outbox_take('t', max => 100)")
        .await;
    let expected = play
        .show(
            "select octet_length(p), md5(p) from (values (1, to_json(repeat('x', 10000000))::text),
                (2, (select to_json(string_agg(md5(i::text), ''))::text from generate_series(1, 327680) i))) v (n, p)
              order by n",
        )
        .await;
    assert_eq!(rows, expected);
}

#[tokio::test]
async fn the_largest_of_everything_is_taken() {
    let play = Playground::open().await;
    play.show("select once.topic_set('t', '{}')").await;
    play.show(
        "select once.outbox_emit('t', '1', repeat('\u{1f980}', 255), repeat('\u{1f980}', 255)),
                once.outbox_emit('t', '2', delay => '1 microsecond')",
    )
    .await;
    assert_eq!(crate::sorted(&drain(&play, "default").await), "1 2");
    play.show("select count(once.outbox_emit('t', '1')) from generate_series(1, 10001)")
        .await;
    let take = "select count(*), max(token) from once.outbox_take('t', max => 10000, lease => '100 years')";
    let taken = play.show(take).await;
    let (count, token) = taken.split_once('|').unwrap();
    assert_eq!(count, "10000");
    // Cut at max_lease_life.
    let extend =
        format!("select once.outbox_extend('t', 'default', {token}, '100 years') < '24 h'");
    assert_eq!(play.show(&extend).await, "t");
    let ack = format!("select once.outbox_ack('t', 'default', {token})");
    assert_eq!(play.show(&ack).await, "10000");
    assert_eq!(drain(&play, "default").await, "1");
}
