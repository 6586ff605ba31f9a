//! The book keeps its word: the SQL of each page runs as it is printed, from the first block to the last, each
//! transaction can be sent again, the Rust program is the one that is compiled and run, and every link leads somewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use pg_once_tests::{Cluster, root};

const QUICKSTART: &str = include_str!("../../client/examples/quickstart.rs");
const PAYMENTS: &str = include_str!("../../client/examples/payments.rs");
const CLERK: &str = include_str!("../../client/examples/billing/clerk.rs");
const CONSUMER: &str = include_str!("../../client/examples/upload/upload.rs");

/// README, the page on monitoring, and all pages below docs/.
fn pages() -> Vec<PathBuf> {
    let mut pages = ["README.md", "sql/monitoring/README.md"]
        .map(|page| root().join(page))
        .to_vec();
    for kind in std::fs::read_dir(root().join("docs")).unwrap() {
        let kind = kind.unwrap().path();
        match kind.is_dir() {
            true => pages.extend(std::fs::read_dir(kind).unwrap().map(|f| f.unwrap().path())),
            false => pages.push(kind),
        }
    }
    pages.retain(|page| page.extension().is_some_and(|e| e == "md"));
    pages
}

/// The blocks of a language, in their order.
fn blocks(page: &Path, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    text.split(&format!("```{language}\n"))
        .skip(1)
        .map(|from| from.split_once("```").expect("the end of the block").0)
        .map(str::to_owned)
        .collect()
}

/// What the pages ask of another extension.
const PGMQ: &str = "create schema pgmq;
create table pgmq.jobs (msg_id bigint generated always as identity, message jsonb);
create function pgmq.send(text, jsonb) returns bigint language sql
    as 'insert into pgmq.jobs (message) values ($2) returning msg_id';
create function pgmq.read(text, integer, integer) returns setof pgmq.jobs language sql as 'select * from pgmq.jobs';
create function pgmq.delete(text, msg_id bigint) returns boolean language sql
    as 'delete from pgmq.jobs j where j.msg_id = $2 returning true';
insert into pgmq.jobs (message) values ('{\"job\": 7}');
";

/// The rows of all tables of the reader, and how many events are in the outbox.
const ROWS: &str = "create schema repeat;
create function repeat.rows() returns text language plpgsql as $$
declare a regclass; found text; told text := '';
begin
  for a in select oid from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace order by oid loop
    execute format('select string_agg(r::text, chr(10) order by r::text) from %s r', a) into found;
    told := concat_ws(chr(10), told, a, found);
  end loop;
  return told || (select count(*) from (table once.event_0 union all table once.event_1 union all
                                        table once.event_2 union all table once.event_3) e);
end $$;
";

/// The SQL with each transaction sent once more after its COMMIT, as after a lost answer. psql stops if that changed a
/// row of the reader's tables or added an event.
fn repeated(sql: &str) -> String {
    let mut out = String::new();
    let mut transaction: Option<String> = None;
    for line in sql.lines() {
        out.push_str(&format!("{line}\n"));
        if line == "BEGIN;" {
            transaction = Some(String::new());
        }
        if let Some(open) = &mut transaction {
            open.push_str(&format!("{line}\n"));
        }
        if line == "COMMIT;"
            && let Some(again) = transaction.take()
        {
            out.push_str(&format!(
                "\\set ON_ERROR_STOP 0\nselect repeat.rows() as rows \\gset once_\n{again}rollback;\n\
                 \\set ON_ERROR_STOP 1\nselect repeat.rows() as rows \\gset twice_\n\
                 select :'once_rows' = :'twice_rows' as same \\gset\n\
                 \\if :same\n\\else\ndo $$ begin raise 'sent again, this changes rows: {}'; end $$;\n\\endif\n",
                again.lines().nth(1).unwrap_or_default().replace('\'', "''")
            ));
        }
    }
    out
}

/// Pastes the SQL of pages into psql, in a database of its own. One session: what a block makes, a later one uses.
async fn pasted(cluster: &Cluster, database: &str, pages: &[PathBuf]) -> String {
    cluster
        .create_database_with_extension(database)
        .await
        .unwrap();
    // A page may read the examples, as in a psql that was started at the top of the clone.
    let examples = cluster.directory().join("sql/examples");
    std::fs::create_dir_all(&examples).unwrap();
    for file in std::fs::read_dir(root().join("sql/examples")).unwrap() {
        let file = file.unwrap().path();
        if file.is_file() {
            std::fs::copy(&file, examples.join(file.file_name().unwrap())).unwrap();
        }
    }
    let script = cluster.directory().join(format!("{database}.sql"));
    let blocks = pages.iter().flat_map(|page| blocks(page, "sql"));
    let blocks: String = blocks.collect();
    let mut sql = format!("{ROWS}{}", repeated(&blocks));
    if sql.contains("pgmq.") {
        sql.insert_str(0, PGMQ);
    }
    std::fs::write(&script, sql).unwrap();
    let arguments = ["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d"];
    let (url, script) = (
        cluster.front_url(database).unwrap(),
        script.to_str().unwrap(),
    );
    cluster
        .run("psql", &[&arguments[..], &[&url, "-f", script]].concat())
        .unwrap_or_else(|error| panic!("{pages:?}: {error:?}"))
        .stdout
}

/// Of the claims in README and the tutorial.
const OUTCOMES: [&str; 4] = ["claimed", "in_progress", "replayed", "mismatched"];

fn outcomes(told: &str) -> Vec<&str> {
    told.lines()
        .filter_map(|line| line.split('|').next())
        .filter(|word| OUTCOMES.contains(word))
        .collect()
}

#[tokio::test]
async fn the_sql_of_every_page_can_be_pasted_and_each_transaction_sent_twice() {
    let cluster = Cluster::launch().unwrap();
    let mut pasted_pages = 0;
    for (i, page) in pages().iter().enumerate() {
        if blocks(page, "sql").is_empty() {
            continue;
        }
        let told = pasted(&cluster, &format!("page{i}"), std::slice::from_ref(page)).await;
        pasted_pages += 1;
        let name = page.file_name().unwrap().to_str().unwrap();
        if i == 0 || name == "psql.md" {
            // README, or the tutorial.
            assert_eq!(outcomes(&told), OUTCOMES, "{name}: {told}");
            assert!(told.contains("replayed|201|{\"order\": 1}"), "{told}");
        }
        if page.ends_with("reference/outbox.md") {
            // The last statement acknowledges the only event, which was there to be taken.
            assert_eq!(told.lines().last(), Some("1"), "{told}");
        }
        if name == "stuck.md" {
            assert!(
                told.contains("closing|clerk-7|Its holder finishes"),
                "{told}"
            );
            assert!(told.contains("open|closing|claim|clerk-7"), "{told}");
        }
    }
    assert!(pasted_pages >= 5, "{pasted_pages}");
    // The first that one reads, all into the same database.
    let first = [
        "README.md",
        "docs/tutorial/psql.md",
        "docs/how-to/foreign-calls.md",
    ];
    let told = pasted(&cluster, "first", &first.map(|page| root().join(page))).await;
    assert_eq!(outcomes(&told), [OUTCOMES, OUTCOMES].concat(), "{told}");
}

#[test]
fn the_rust_program_is_the_example_that_runs() {
    let page = root().join("docs/how-to/rust.md");
    assert!(QUICKSTART.contains(blocks(&page, "rust")[0].trim_end()));
}

/// What a link may name in a page: its headings as GitHub and mdBook spell them, in lower case, without punctuation, a
/// hyphen for each space, and a number where a heading comes again.
fn anchors(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let mut found: Vec<String> = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if is_code || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim();
        let spelt = heading.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || "-_".contains(c) => Some(c),
            _ => None,
        });
        let anchor = spelt.collect::<String>().to_lowercase();
        let again = (1..).map(|n| format!("{anchor}-{n}"));
        let mut names = std::iter::once(anchor.clone()).chain(again);
        found.push(names.find(|name| !found.contains(name)).unwrap());
    }
    found
}

/// The pages that the book's last part lists.
const FILES: [&str; 7] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "sql/examples/README.md",
    "sql/examples/java/README.md",
    "sql/examples/node/README.md",
    "sql/examples/python/README.md",
    "tests/e2e/faults/README.md",
];

#[test]
fn the_programs_of_the_book_are_examples_that_run() {
    for (page, program) in [("idempotency-key.md", PAYMENTS), ("billing.md", CLERK)] {
        let page = root().join("docs/how-to").join(page);
        assert!(program.contains(blocks(&page, "rust")[0].trim_end()));
    }
}

/// docs/how-to/python.md says which lines are marked; the same rule holds for both languages.
#[test]
fn idempotency_costs_a_service_and_an_action_five_lines_and_a_consumer_three() {
    for (program, most) in [(PAYMENTS, 5), (CLERK, 5), (CONSUMER, 3)] {
        let marked = program.lines().filter(|line| line.ends_with("// once"));
        assert!((1..=most).contains(&marked.count()), "{program}");
        let imports = program
            .lines()
            .filter(|line| line.starts_with("use pg_once"));
        assert!(imports.into_iter().all(|line| line.ends_with("// once")));
    }
}

#[test]
fn every_link_of_the_book_leads_to_a_file_and_its_heading() {
    let mut broken = Vec::new();
    for page in pages().into_iter().chain(FILES.map(|f| root().join(f))) {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split_once(')').unwrap().0;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let leads = link.starts_with("http")
                || target.exists()
                    && (anchor.is_empty() || anchors(&target).iter().any(|a| a == anchor));
            if !leads {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_the_summary() {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let mut missing = Vec::new();
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap();
        if !summary.contains(&format!("{name})")) && name != "SUMMARY.md" {
            missing.push(name.to_owned());
        }
    }
    assert!(missing.is_empty(), "not in SUMMARY.md: {missing:?}");
}

#[test]
fn readme_keeps_to_two_screens() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 140);
}
