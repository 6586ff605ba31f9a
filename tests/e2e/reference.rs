//! The reference's generated parts say what a server answers: each page of docs/reference/ has them between
//! `<!-- generated: ... -->` and `<!-- end -->`. `PG_ONCE_WRITE_DOCS=1` (`make docs`) writes them.
//!
//! `functions key_* scope_*` lists the functions of these names. The longest pattern of all pages decides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use pg_once_tests::{Cluster, root};
use tokio_postgres::Client;

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end -->";
const WIDTH: usize = 100;

/// In the order of the install script, so that a page has the order of its noun's file. Triggers' functions are not
/// called.
const FUNCTIONS: &str = r"
    SELECT p.proname::text, p.prokind = 'p', p.proretset, pg_catalog.obj_description(p.oid, 'pg_proc'),
           CASE WHEN p.proargmodes IS NULL THEN pg_catalog.format_type(p.prorettype, NULL) END,
           a.inputs, a.outputs,
           CASE WHEN pg_catalog.has_function_privilege('public', p.oid, 'EXECUTE') THEN 'whoever may use the schema `once`'
                ELSE coalesce((SELECT 'roles of kind ' || string_agg(kind, ', ' ORDER BY kind DESC)
                                 FROM once.role_function WHERE function_name = p.proname),
                              'the extension''s owner') END
      FROM pg_catalog.pg_proc p,
           LATERAL (SELECT coalesce(array_agg(x.said ORDER BY x.n) FILTER (WHERE x.is_input), '{}'),
                           coalesce(array_agg(x.said ORDER BY x.n) FILTER (WHERE NOT x.is_input), '{}')
                      FROM (SELECT u.n, coalesce(u.mode, 'i') = 'i',
                                   u.name || ' '
                                   || replace(pg_catalog.format_type(u.type, NULL), 'timestamp with time zone', 'timestamptz')
                                   || coalesce(' = ' || regexp_replace(pg_catalog.pg_get_function_arg_default(p.oid, u.n::int),
                                                                       '::[a-z ]+(\[\])?$', ''), '')
                              FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes, p.proargnames)
                                   WITH ORDINALITY u (type, mode, name, n)) x (n, is_input, said)) a (inputs, outputs)
     WHERE p.pronamespace = 'once'::pg_catalog.regnamespace AND p.prorettype <> 'trigger'::pg_catalog.regtype
     ORDER BY p.oid";

const SETTINGS: &str = r"
    SELECT '`' || name || '`', '`' || coalesce(nullif(pg_catalog.current_setting(name), ''), '''''') || '`',
           coalesce(unit, ''),
           CASE context WHEN 'user' THEN 'everybody' WHEN 'superuser' THEN 'a superuser' ELSE 'the server''s file, at a reload' END,
           short_desc || ' ' || extra_desc
      FROM pg_catalog.pg_settings WHERE name LIKE 'once.%' ORDER BY name";

const METRICS: &str = r"
    SELECT '`' || name || '`', CASE WHEN name LIKE '%\_total' THEN 'counter' ELSE 'gauge' END,
           coalesce((SELECT string_agg(DISTINCT '`' || label || '`', ', ')
                       FROM once.metrics() m, pg_catalog.jsonb_object_keys(m.labels) label WHERE m.name = o.name), ''),
           string_agg(DISTINCT help, ' / ')
      FROM once.metrics() o GROUP BY name ORDER BY name";

/// The options of a new scope, topic and subscriber.
const OPTIONS: &str = r"
    SELECT '## Of a ' || kind, key, coalesce(value, 'null')
      FROM (VALUES ('scope', once.scope_get('new')), ('topic', once.topic_get('t')),
                   ('subscriber', once.subscriber_get('t', 'default'))) o (kind, options),
           pg_catalog.json_each_text(options)";

/// What metrics() needs to have a row of every name.
const EVERYTHING: &str = r#"
    CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL);
    SELECT once.machine_define('{"machine": "orders", "table": "orders", "id": "id", "status": "status",
        "status_types": ["new", "paying", "paid"],
        "steps": [{"step_key": "pay", "status": "new", "claim_state": {"*": ["paying", "new"]},
                   "successful_state": {"*": "paid"}}]}');
    SELECT once.topic_set('t');
    SELECT once.outbox_emit('t', '{}');
    SELECT once.key_claim('s', 'k');
    SELECT * FROM once.sweep();"#;

/// The reference's pages with their texts.
fn pages() -> BTreeMap<PathBuf, String> {
    let files = std::fs::read_dir(root().join("docs/reference")).unwrap();
    files
        .map(|file| file.unwrap().path())
        .map(|page| (page.clone(), std::fs::read_to_string(page).unwrap()))
        .collect()
}

/// Function or procedure, as a page shows it.
struct Function {
    name: String,
    signature: String,
    comment: String,
    rights: String,
}

async fn functions(client: &Client) -> Vec<Function> {
    let rows = client.query(FUNCTIONS, &[]).await.unwrap();
    rows.iter()
        .map(|row| {
            let name: String = row.get(0);
            let comment: Option<String> = row.get(3);
            let length = comment.iter().flat_map(|text| text.chars()).count();
            assert!(
                length <= 600,
                "the COMMENT of {name} has {length} characters"
            );
            let (inputs, outputs): (Vec<String>, Vec<String>) = (row.get(5), row.get(6));
            let call = if row.get(1) { "CALL once." } else { "once." };
            let mut signature = listed(&format!("{call}{name}("), &inputs, ")");
            let answer = match row.get::<_, Option<String>>(4) {
                Some(of_one_type) => vec![of_one_type],
                None => outputs,
            };
            if answer != ["void"] && !answer.is_empty() {
                let rows = if row.get(2) { "  → rows: " } else { "  → " };
                signature.push_str(&listed(rows, &answer, ""));
            }
            Function {
                comment: comment.unwrap_or_else(|| panic!("{name} has no COMMENT")),
                name,
                signature,
                rights: row.get(7),
            }
        })
        .collect()
}

/// A list with its ends, in lines that fit a block.
fn listed(begin: &str, items: &[String], end: &str) -> String {
    let mut text = String::new();
    let mut line = begin.to_owned();
    for (i, item) in items.iter().enumerate() {
        let comma = if i + 1 < items.len() { "," } else { end };
        if line.chars().count() + item.len() + comma.len() + 1 > WIDTH {
            text.push_str(line.trim_end());
            line = "\n        ".to_owned();
        }
        line.push_str(&format!("{item}{comma} "));
    }
    if items.is_empty() {
        line.push_str(end);
    }
    format!("{text}{}\n", line.trim_end())
}

/// Text in which nothing has a meaning for Markdown.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut last = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let in_a_word = |c: char| c.is_alphanumeric() || c == '_';
        let in_both = in_a_word(last) && rest.peek().is_some_and(|&c| in_a_word(c));
        if "\\*<[]`|".contains(c) || (c == '_' && !in_both) {
            plain.push('\\');
        }
        plain.push(c);
        last = c;
    }
    plain
}

/// How long the part of a pattern is that a name begins with; a pattern without `*` is a whole name.
fn fit(pattern: &str, name: &str) -> Option<usize> {
    let fits = match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    };
    fits.then_some(pattern.len())
}

/// The functions of a page's patterns, each name once: a second form shows only its COMMENT.
fn of_patterns<'a>(
    functions: &'a [Function],
    own: &str,
    all: &str,
) -> Vec<(&'a str, Vec<&'a Function>)> {
    let best = |patterns: &str, name: &str| patterns.split(' ').filter_map(|p| fit(p, name)).max();
    let mut found: Vec<(&str, Vec<&Function>)> = Vec::new();
    for function in functions {
        let place = best(all, &function.name);
        assert!(place.is_some(), "no page has {}", function.name);
        if best(own, &function.name) != place {
            continue;
        }
        match found.iter_mut().find(|(name, _)| *name == function.name) {
            Some((_, forms)) => forms.push(function),
            None => found.push((&function.name, vec![function])),
        }
    }
    found
}

fn shown(functions: &[(&str, Vec<&Function>)]) -> String {
    let mut text = String::new();
    for (name, forms) in functions {
        let first = forms[0];
        text.push_str(&format!(
            "\n### {name}\n\n```text\n{}```\n",
            first.signature
        ));
        for line in forms.iter().flat_map(|form| form.comment.lines()) {
            text.push_str(&format!("\n{}\n", plain(line)));
        }
        text.push_str(&format!("\nFor {}.\n", first.rights));
    }
    text
}

async fn table(client: &Client, heads: &[&str], query: &str) -> String {
    let mut text = format!(
        "\n| {} |\n|{}\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    );
    for row in client.query(query, &[]).await.unwrap() {
        let cells = (0..heads.len()).map(|i| row.get::<_, String>(i));
        let cells = cells.map(|cell| match cell.starts_with('`') {
            true => cell,
            false => plain(&cell),
        });
        text.push_str(&format!("| {} |\n", cells.collect::<Vec<_>>().join(" | ")));
    }
    text
}

/// The page with its generated parts made anew.
async fn made_anew(client: &Client, functions: &[Function], all: &str, page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, from)) = rest.split_once(BEGIN) {
        let (what, from) = from.split_once(" -->").expect("the end of the marker");
        let (_, after) = from.split_once(END).expect(END);
        let part = match what.split_once(' ') {
            Some(("functions", own)) => shown(&of_patterns(functions, own, all)),
            None if what == "settings" => {
                let heads = ["setting", "default", "unit", "set by", "meaning"];
                table(client, &heads, SETTINGS).await
            }
            None if what == "metrics" => {
                let heads = ["name", "kind", "labels", "meaning"];
                table(client, &heads, METRICS).await
            }
            _ => panic!("nothing generates \"{what}\""),
        };
        text.push_str(&format!("{before}{BEGIN}{what} -->\n{part}\n{END}"));
        rest = after;
    }
    text + rest
}

#[tokio::test]
async fn the_reference_says_what_the_server_answers() {
    let builder = Cluster::builder().setting("shared_preload_libraries", "pg_once");
    let cluster = builder.launch().unwrap();
    let client = cluster.create_database_with_extension("reference").await;
    let client = client.unwrap();
    client.batch_execute(EVERYTHING).await.unwrap();
    let functions = functions(&client).await;
    let names: BTreeSet<_> = functions.iter().map(|function| &function.name).collect();
    assert!(names.len() <= 80, "{} functions to learn", names.len());
    let pages = pages();
    let patterns = pages
        .values()
        .flat_map(|page| page.split(BEGIN).skip(1))
        .filter_map(|part| part.strip_prefix("functions ")?.split_once(" -->"))
        .map(|(patterns, _)| patterns)
        .collect::<Vec<_>>()
        .join(" ");
    let mut stale = Vec::new();
    for (path, page) in &pages {
        let anew = made_anew(&client, &functions, &patterns, page).await;
        if anew == *page {
            continue;
        }
        match std::env::var("PG_ONCE_WRITE_DOCS").as_deref() {
            Ok("1") => std::fs::write(path, anew).unwrap(),
            _ => stale.push(path.file_name().unwrap().to_string_lossy()),
        }
    }
    assert!(stale.is_empty(), "run make docs: {}", stale.join(", "));
}

#[tokio::test]
async fn every_option_has_a_line_with_its_default() {
    let cluster = Cluster::launch().unwrap();
    let client = cluster.create_database_with_extension("options").await;
    let client = client.unwrap();
    client
        .batch_execute("SELECT once.topic_set('t')")
        .await
        .unwrap();
    let page = std::fs::read_to_string(root().join("docs/reference/options.md")).unwrap();
    for row in client.query(OPTIONS, &[]).await.unwrap() {
        let [section, option, default] = [0, 1, 2].map(|i| row.get::<_, String>(i));
        let (_, lines) = page.split_once(&section).expect(&section);
        let lines = lines.split("\n## ").next().unwrap();
        let line = format!("\n| `{option}` | `{default}` |");
        assert!(lines.contains(&line), "{section}: {line}");
    }
}

#[test]
fn every_sqlstate_that_is_raised_has_a_line() {
    let page = std::fs::read_to_string(root().join("docs/reference/errors.md")).unwrap();
    let source = std::fs::read_to_string(root().join("pg_ext/src/error.rs")).unwrap();
    let codes = source.split("b\"").skip(1).map(|from| &from[..5]);
    let missing: Vec<_> = codes
        .filter(|code| !page.contains(&format!("\n| `{code}` |")))
        .collect();
    assert!(missing.is_empty(), "not in errors.md: {missing:?}");
}
