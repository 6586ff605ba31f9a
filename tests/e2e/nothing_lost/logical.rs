//! pg_dump and pg_restore of a database with everything at once, in every format, into a cluster whose
//! transaction ids are far below, and back.

use pg_once_tests::Cluster;

use crate::content::{self, Tokens};
use crate::{DATABASE, on, with_everything};

/// How it is dumped and how it is restored into an empty database; `DB` is the database.
const WAYS: [(&str, &str, &[&str]); 4] = [
    (
        "custom",
        "pg_dump -Fc -f custom -d DB",
        &["pg_restore --exit-on-error -d DB custom"],
    ),
    (
        "plain",
        "pg_dump -f plain -d DB",
        &["psql -X -q -v ON_ERROR_STOP=1 -d DB -f plain"],
    ),
    (
        "jobs",
        "pg_dump -Fd -j 3 -f jobs -d DB",
        &["pg_restore --exit-on-error -j 3 -d DB jobs"],
    ),
    // The schema first, then the data alone: the guard would refuse to load rows in claim states.
    (
        "alone",
        "pg_dump -Fc -f alone -d DB",
        &[
            "pg_restore --exit-on-error --schema-only -d DB alone",
            "pg_restore --exit-on-error --data-only --disable-triggers -d DB alone",
        ],
    ),
];

fn run(cluster: &Cluster, command: &str, database: &str) {
    let words = command
        .split(' ')
        .map(|word| if word == "DB" { database } else { word });
    let words: Vec<&str> = words.collect();
    let output = cluster.run(words[0], &words[1..]).unwrap();
    assert_eq!(output.stderr, "", "{command}");
}

/// Dumps `from` in each way, restores each into a database of its own and goes on there.
async fn move_each_way(from: &Cluster, to: &Cluster, tokens: &Tokens, before: &str) {
    for (way, dump, restores) in WAYS {
        run(from, dump, DATABASE);
        from.hand_over(way, to).unwrap();
        to.psql("postgres", &format!("create database {way}"))
            .unwrap();
        for restore in restores {
            run(to, restore, way);
        }
        let play = on(to, way, "").await;
        assert_eq!(content::stored(&play).await, before, "{way}");
        // Sequences give nothing that was given before.
        let ahead = "select bool_and(last_value >= (select max(event_id) from once.event_0)) from once.event_id";
        assert_eq!(play.show(ahead).await, "t", "{way}");
        content::goes_on(tokens, async |role: &str| on(to, way, role).await).await;
    }
}

#[tokio::test]
async fn every_kind_of_dump_goes_on_in_a_cluster_whose_transaction_ids_are_lower() {
    let mut far = Cluster::launch().unwrap();
    far.far_ahead().unwrap();
    let (play, tokens) = with_everything(&far).await;
    let before = content::stored(&play).await;
    let near = Cluster::launch().unwrap();
    far.copy_roles(&near).unwrap();
    move_each_way(&far, &near, &tokens, &before).await;
}

#[tokio::test]
async fn a_dump_goes_on_in_a_cluster_whose_transaction_ids_are_higher() {
    let near = Cluster::launch().unwrap();
    let (play, tokens) = with_everything(&near).await;
    let before = content::stored(&play).await;
    let mut far = Cluster::launch().unwrap();
    far.far_ahead().unwrap();
    near.copy_roles(&far).unwrap();
    let (way, dump, restores) = WAYS[0];
    run(&near, dump, DATABASE);
    near.hand_over(way, &far).unwrap();
    far.psql("postgres", "create database moved").unwrap();
    run(&far, restores[0], "moved");
    let play = on(&far, "moved", "").await;
    assert_eq!(content::stored(&play).await, before);
    content::goes_on(&tokens, async |role: &str| on(&far, "moved", role).await).await;
}

/// A dump of the whole cluster, roles and all, as a DBA takes it at night.
#[tokio::test]
async fn pg_dumpall_carries_owners_and_grants_along() {
    let old = Cluster::launch().unwrap();
    let (_, tokens) = with_everything(&old).await;
    old.run("pg_dumpall", &["--clean", "--if-exists", "-f", "all"])
        .unwrap();
    let new = Cluster::launch().unwrap();
    old.hand_over("all", &new).unwrap();
    // It drops and makes the superuser that it runs as; nothing else may fail.
    let output = new
        .run("psql", &["-X", "-q", "-d", "postgres", "-f", "all"])
        .unwrap();
    let others: Vec<&str> = output
        .stderr
        .lines()
        .filter(|line| line.contains("ERROR") && !line.contains("current user cannot be dropped"))
        .filter(|line| !line.contains("role \"postgres\" already exists"))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    content::goes_on(&tokens, async |role: &str| on(&new, DATABASE, role).await).await;
}
