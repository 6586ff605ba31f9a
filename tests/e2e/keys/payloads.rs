//! What is handed in comes back byte for byte: large bodies, oddly written JSON, every encoding.

use pg_once_tests::Cluster;

use crate::playground::{Playground, cluster};

#[tokio::test]
async fn a_body_of_ten_megabytes_comes_back_byte_for_byte() {
    let play = Playground::open().await;
    // Numbers that do not compress to nothing, spaces that a rebuild would lose.
    let mut body = String::from("[  ");
    let mut x: u64 = 7;
    while body.len() < 10 << 20 {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        body.push_str(&format!("{:e} ,", x as f64));
    }
    body.push_str(" 0 ]");
    let client = &play.client;
    let token: i64 = client
        .query_one("select token from once.key_claim('s', 'k')", &[])
        .await
        .unwrap()
        .get(0);
    let complete = "select once.key_complete('s', 'k', $1, 200, $2::text::json, $3::text::json)";
    client
        .execute(complete, &[&token, &body, &"{\"a\":\u{20}1}"])
        .await
        .unwrap();
    let replay =
        "select outcome, response_body::text, response_headers::text from once.key_claim('s', 'k')";
    let row = client.query_one(replay, &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "replayed");
    assert!(row.get::<_, String>(1) == body, "the body is the same");
    assert_eq!(row.get::<_, String>(2), "{\"a\": 1}");
    let get = "select response_body::text from once.key_get('s', 'k')";
    assert!(
        client
            .query_one(get, &[])
            .await
            .unwrap()
            .get::<_, String>(0)
            == body
    );
    let changed = body.replace("[  ", "[   ");
    let error = client
        .execute(complete, &[&token, &changed, &"{\"a\": 1}"])
        .await
        .unwrap_err();
    assert_eq!(error.code().unwrap().code(), "ON006");
}

#[tokio::test]
async fn a_large_state_and_request_survive_advance_takeover_and_release() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"keep_request": true}')"#)
        .await;
    play.show("create table big as select (select json_agg(md5(n::text || i)) from generate_series(1, 40000) n) as body from generate_series(1, 2) i").await;
    play.clock("0").await;
    let token = play
        .show("select c.token from (select body b from big limit 1) x, once.key_claim('s', 'k', x.b) c")
        .await;
    play.show(&format!(
        "select once.key_advance('s', 'k', {token}, 'p', x.body), once.key_step_done('s', 'k', {token}, 'pay', x.body)
           from (select body from big offset 1) x"
    ))
    .await;
    play.show("update big set body = null").await;
    play.show("vacuum full big").await;
    for minutes in [2, 4, 6] {
        play.clock(&format!("{minutes} min")).await;
        let taken = "select once.sweep(task => 'key_abandon'); select length(state::text) > 1000000, length(request::text) > 1000000, token
                       from once.key_take_abandoned('s')";
        let taken = play.show(taken).await;
        let token = taken.strip_prefix("t|t|").unwrap();
        play.show(&format!("select once.key_release('s', 'k', {token})"))
            .await;
        play.show("vacuum once.key").await;
        let token = play.show("select token from once.key_claim('s', 'k', (select request from once.key_get('s', 'k')))").await;
        play.ask(&format!("select done, length(result::text) > 1000000 from once.key_step('s', 'k', {token}, 'pay')"))
            .is("t|t")
            .await;
    }
}

#[tokio::test]
async fn json_comes_back_as_it_was_written() {
    let play = Playground::open().await;
    let bodies = [
        r#"{"a" :1,"a":2,   "b": [ 1.00, -0, 1e5, 1E+5, 0.10 ] }"#,
        r#"  "leading and trailing"  "#,
        r#""nul \u0000 and \ud83d\ude00 and \/ and \u00e9""#,
        "{\n\t\"tab\":\r\n null}",
        r#"{"big": 123456789012345678901234567890.123456789012345678901234567890}"#,
        "1e400",
        "\"日本語 😀 é\"",
        "{}",
        "null",
    ];
    for (n, body) in bodies.iter().enumerate() {
        let key = format!("k{n}");
        let client = &play.client;
        let token: i64 = client
            .query_one("select token from once.key_claim('s', $1)", &[&key])
            .await
            .unwrap()
            .get(0);
        let advance = "select once.key_advance('s', $1, $2, 'p', $3::text::json)";
        client
            .execute(advance, &[&key, &token, body])
            .await
            .unwrap();
        let step = "select recorded, result::text from once.key_step_done('s', $1, $2, 'pay', $3::text::json)";
        assert_eq!(
            client
                .query_one(step, &[&key, &token, body])
                .await
                .unwrap()
                .get::<_, String>(1),
            *body
        );
        let again = "select result::text from once.key_step('s', $1, $2, 'pay')";
        assert_eq!(
            client
                .query_one(again, &[&key, &token])
                .await
                .unwrap()
                .get::<_, String>(0),
            *body
        );
        let state = "select state::text from once.key_get('s', $1)";
        assert_eq!(
            client
                .query_one(state, &[&key])
                .await
                .unwrap()
                .get::<_, String>(0),
            *body
        );
        let complete = "select once.key_complete('s', $1, $2, 200, $3::text::json, $3::text::json)";
        client
            .execute(complete, &[&key, &token, body])
            .await
            .unwrap();
        let replay =
            "select response_body::text, response_headers::text from once.key_claim('s', $1)";
        let row = client.query_one(replay, &[&key]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), *body);
        assert_eq!(row.get::<_, String>(1), *body);
        let steps = "select steps::text from once.key_get('s', $1)";
        let steps: String = client.query_one(steps, &[&key]).await.unwrap().get(0);
        assert!(steps.contains(body.trim()), "{steps}");
    }
}

/// A database in another encoding; the client speaks `client`.
async fn in_encoding(
    cluster: &Cluster,
    database: &str,
    encoding: &str,
    client: &str,
) -> Playground {
    let admin = cluster.connect("postgres").await.unwrap();
    admin
        .batch_execute(&format!(
            "create database {database} encoding {encoding} lc_collate 'C' lc_ctype 'C' template template0"
        ))
        .await
        .unwrap();
    // Directly: a pooler decides itself what a server session's client_encoding is.
    let play = Playground::of(cluster.connect(database).await.unwrap(), database);
    play.show(&format!(
        "create extension pg_once; set client_encoding = {client}"
    ))
    .await;
    play
}

/// A defect once: a key's row was found by a hash over the bytes of the encoding it was claimed in.
#[tokio::test]
async fn keys_dumped_from_latin1_and_restored_into_utf8_are_the_same_keys() {
    let play = in_encoding(cluster(), "dumped", "latin1", "utf8").await;
    let token = play.token("clé", ", '\"ä\"'").await;
    let derived = play
        .show(&format!(
            "select derived_key from once.key_step('s', 'clé', {token}, 'zählen')"
        ))
        .await;
    play.show(&format!(
        "select once.key_complete('s', 'clé', {token}, 200, '\"ü\"')"
    ))
    .await;
    cluster()
        .run("pg_dump", &["-d", "dumped", "-Fc", "-f", "dumped.dump"])
        .unwrap();
    cluster()
        .connect("postgres")
        .await
        .unwrap()
        .batch_execute("create database restored encoding utf8 template template0")
        .await
        .unwrap();
    cluster()
        .run(
            "pg_restore",
            &["-d", "restored", "--exit-on-error", "dumped.dump"],
        )
        .unwrap();
    let restored = Playground::on(cluster(), "restored").await;
    restored
        .ask("select outcome, response_body from once.key_claim('s', 'clé', '\"ä\"')")
        .is("replayed|\"ü\"")
        .await;
    assert_eq!(
        restored
            .show("select once.key_derive('s', 'clé', 'zählen')")
            .await,
        derived
    );
}

/// jsonb orders an object's members by the bytes of their names in the database's encoding, so names are ASCII here.
#[tokio::test]
async fn a_request_with_ascii_names_has_the_same_fingerprint_in_latin1_and_in_utf8() {
    let requests = [
        "\"é\"",
        r#"{"zz": "é", "a": 3, "zzz": "ÿÿ", "u": {"s": ["ø", 1.0]}}"#,
        r#"{"ea": "aé", "aaa": "éé", "": "é"}"#,
        r#"[{"ä": null}, {"a": null}, "aä", ["ä", "a"]]"#,
    ];
    let mut fingerprints = Vec::new();
    for (database, encoding) in [
        ("fp_latin1", "latin1"),
        ("fp_latin9", "latin9"),
        ("fp_utf8", "utf8"),
    ] {
        let play = in_encoding(cluster(), database, encoding, "utf8").await;
        for (n, request) in requests.iter().enumerate() {
            play.token(&n.to_string(), &format!(", '{request}'")).await;
        }
        let all = "select string_agg(encode(fingerprint, 'hex'), ' ' order by key), count(distinct fingerprint)
                     from once.key";
        fingerprints.push(play.show(all).await);
    }
    assert!(fingerprints[0].ends_with("|4"), "{fingerprints:?}");
    assert_eq!(fingerprints[0], fingerprints[2]);
    assert_eq!(fingerprints[1], fingerprints[2]);
}
