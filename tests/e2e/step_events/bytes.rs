//! A registered payload is emitted byte for byte as it stood in the document.

use crate::open;

async fn through(play: &crate::Playground, key: &str, payload: &str) -> String {
    let token = play.token(key, "").await;
    let event = format!(r#"{{"topic" :"t",  "payload":{payload}, "order_key": "o"}}"#);
    let event = event.replace('\'', "''");
    play.show(&format!(
        "select once.key_step_done('s', '{key}', {token}, 'pay', '1', '{event}')"
    ))
    .await;
    play.show(&format!(
        "select once.key_complete('s', '{key}', {token}, 200)"
    ))
    .await;
    play.show("select payload from once.event_0 order by event_id desc limit 1")
        .await
}

#[tokio::test]
async fn odd_payloads_are_not_touched() {
    let play = open().await;
    let deep = format!("{}1{}", "[".repeat(500), "]".repeat(500));
    let long = format!("\"{}\"", "ab ü\\n".repeat(50_000));
    for (i, payload) in [
        "1.000",
        "-0",
        "1e400000",
        "1E-7",
        "12345678901234567890.123456789012345678901234567890",
        "null",
        "true",
        "\"\"",
        "\"}\"",
        "\"\\\"\"",
        "\"\\\\\"",
        "\"\\\\\\\"}{][,:\"",
        "\"\\u0000\"",
        "\"\\ud83d\"",
        "\"\\ud83d\\ude00 😀\"",
        "\"it's\"",
        "{ \"b\" : 1 , \"a\":\t2,\"a\" :3}",
        "[1,  2 ,[ ],{ }]",
        "{\"a\\\"b\":\"}\",\"c\":[\"]\",\"\\\\\"]}",
        &deep,
        &long,
    ]
    .iter()
    .enumerate()
    {
        let got = through(&play, &format!("k{i}"), payload).await;
        assert!(got == *payload, "{payload:.80}\n{got:.80}");
    }
}

#[tokio::test]
async fn what_is_registered_agrees_with_what_the_server_reads_of_the_document() {
    let play = open().await;
    play.show(
        r#"create table document (id bigint generated always as identity, doc json);
           insert into document (doc)
           select format('%s{%s"payload"%s:%s%s%s,"topic":"t"%s}%s', s[1 + n % 4], s[1 + n % 3], s[1 + n % 5],
                         s[1 + n % 2], p, s[1 + n % 4], s[1 + n % 3], s[1 + n % 2])::json
             from unnest(array[e'"\\\\"', e'"\\""', '[{"a":"]}"},"[{"]', '{"x":{"y":[1,2,{"z":"\"}"}]}}', '-1.50e+3',
                               '"ünï"', '[[[]]]', '{"":{"":""}}', 'false', '"a,b:c"']) with ordinality u (p, m),
                  generate_series(1, 30) n,
                  (select array['', ' ', e'\n', e'\t\r\n  ', '   ']) spaces (s)"#,
    )
    .await;
    play.show(
        "select count(k) from (
           select c.token, d.id, once.key_step('s', 'k' || d.id, c.token, 'pay', d.doc) k
             from document d, once.key_claim('s', 'k' || d.id) c order by d.id offset 0) begun
          cross join lateral once.key_abort('s', 'k' || begun.id, begun.token, 500) where k::text <> ''",
    )
    .await;
    let wrong = "select count(*), count(*) filter (where e.payload::text is distinct from (d.doc -> 'payload')::text)
                   from document d left join (select payload, row_number() over (order by event_id) n from once.event_0) e
                        on e.n = d.id";
    assert_eq!(play.show(wrong).await, "300|0");
}
