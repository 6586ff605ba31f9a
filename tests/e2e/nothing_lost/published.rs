//! A publication FOR ALL TABLES, as change data capture makes it: it has the extension's tables, too.

use pg_once_tests::{Cluster, race};

use crate::content::{self, Tokens};
use crate::playground::Playground;
use crate::{DATABASE, on};

/// Tables whose deletes a publication refuses, and tables that a subscriber's first copy would collide in.
const UNIDENTIFIED: &str = "
    select coalesce(string_agg(c.relname, ' '), '') from pg_class c
     where c.relnamespace = 'once'::regnamespace and c.relkind = 'r'
       and not case c.relreplident
               when 'd' then exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
               when 'i' then exists (select from pg_index i where i.indrelid = c.oid and i.indisreplident)
               else c.relreplident = 'f' end";

async fn logical() -> (Cluster, Playground) {
    let cluster = Cluster::builder()
        .setting("wal_level", "logical")
        .launch()
        .unwrap();
    cluster.psql("postgres", content::ROLES).unwrap();
    cluster
        .create_database_with_extension(DATABASE)
        .await
        .unwrap();
    let play = on(&cluster, DATABASE, "").await;
    (cluster, play)
}

async fn caught_up(play: &Playground) {
    let end = play.show("select pg_current_wal_lsn()").await;
    let behind = format!(
        "select count(*) from pg_stat_replication where replay_lsn >= '{end}' and application_name = 'copy'"
    );
    race::poll_async("the subscriber to have everything", async || {
        Ok((play.show(&behind).await == "1").then_some(()))
    })
    .await
    .unwrap();
}

async fn assert_equal(play: &Playground, copy: &Playground) {
    caught_up(play).await;
    let (here, there) = (content::stored(play).await, content::stored(copy).await);
    let only = |a: &str, b: &str| -> Vec<String> {
        let b: Vec<&str> = b.lines().collect();
        a.lines()
            .filter(|l| !b.contains(l))
            .map(str::to_owned)
            .collect()
    };
    let none: [Vec<String>; 2] = Default::default();
    assert_eq!([only(&here, &there), only(&there, &here)], none);
}

#[tokio::test]
async fn no_table_is_without_a_replica_identity_and_none_has_rows_after_create_extension() {
    let cluster = Cluster::launch().unwrap();
    cluster
        .create_database_with_extension(DATABASE)
        .await
        .unwrap();
    let play = on(&cluster, DATABASE, "").await;
    assert_eq!(play.show(UNIDENTIFIED).await, "");
    assert_eq!(content::stored(&play).await, "");
}

/// A publisher and a subscriber of all its tables, and a day at the publisher.
struct Fed {
    publisher: Cluster,
    play: Playground,
    subscriber: Cluster,
    copy: Playground,
    tokens: Tokens,
}

async fn fed() -> Fed {
    let (publisher, play) = logical().await;
    let (subscriber, copy) = logical().await;
    for play in [&play, &copy] {
        play.show(content::JOBS).await;
    }
    play.show("create publication everything for all tables")
        .await;
    fed_with("copy_data", publisher, play, subscriber, copy).await
}

/// The subscriber is a physical copy of the publisher, with the same system identifier.
async fn fed_physical_copy() -> Fed {
    let (publisher, play) = logical().await;
    play.show(content::JOBS).await;
    play.show("create publication everything for all tables")
        .await;
    play.show("select pg_create_logical_replication_slot('copy', 'pgoutput')")
        .await;
    let subscriber = publisher.standby().unwrap();
    subscriber.wait_caught_up(&publisher).await.unwrap();
    subscriber.promote().await.unwrap();
    let copy = on(&subscriber, DATABASE, "").await;
    let burn =
        "do $$ begin for i in 1..5000 loop perform pg_current_xact_id(); commit; end loop; end $$";
    play.show(burn).await;
    let slot = "copy_data = false, create_slot = false";
    fed_with(slot, publisher, play, subscriber, copy).await
}

async fn fed_with(
    options: &str,
    publisher: Cluster,
    play: Playground,
    subscriber: Cluster,
    copy: Playground,
) -> Fed {
    let subscribe = format!(
        "create subscription copy connection 'host={} port={} user=postgres dbname={DATABASE}' publication everything
           with ({options})",
        publisher.socket_directory().display(),
        publisher.port()
    );
    copy.show(&subscribe).await;
    let copied = "select bool_and(srsubstate = 'r') from pg_subscription_rel";
    race::poll_async("the first copy of each table", async || {
        Ok((copy.show(copied).await == "t").then_some(()))
    })
    .await
    .unwrap();
    let tokens = content::a_working_day(&play).await;
    assert_equal(&play, &copy).await;
    Fed {
        publisher,
        play,
        subscriber,
        copy,
        tokens,
    }
}

#[tokio::test]
async fn days_under_a_publication_for_all_tables_fail_nowhere_and_a_subscriber_ends_equal() {
    let fed = fed().await;
    content::goes_on(&fed.tokens, async |role: &str| {
        on(&fed.publisher, DATABASE, role).await
    })
    .await;
    assert_equal(&fed.play, &fed.copy).await;
    let failed = "select coalesce(sum(failed), 0) from once.janitor_status()";
    assert_eq!(fed.play.show(failed).await, "0");
}

/// The target's clients come.
async fn switch(fed: &Fed) {
    // The guard is a trigger, and grants are grants: neither is a row.
    fed.copy
        .show("select once.machine_guard('batch_job', true)")
        .await;
    fed.copy.show(content::GRANTS).await;
    fed.copy
        .show("select once.grant_role(role_name::regrole, kind) from once.role_grant")
        .await;
    content::goes_on(&fed.tokens, async |role: &str| {
        on(&fed.subscriber, DATABASE, role).await
    })
    .await;
}

#[tokio::test]
async fn a_logical_subscriber_goes_on_after_the_switch() {
    let fed = fed().await;
    fed.copy.show("drop subscription copy").await;
    switch(&fed).await;
}

#[tokio::test]
async fn a_physical_copy_that_was_fed_logically_goes_on_once_its_incarnation_is_renewed() {
    let fed = fed_physical_copy().await;
    let present = "select once.incarnation()";
    assert_eq!(fed.copy.show(present).await, fed.play.show(present).await);
    fed.copy.show("drop subscription copy").await;
    let future =
        "select level from once.doctor() where problem like 'events come from the future%'";
    assert_eq!(fed.copy.show(future).await, "error");
    fed.copy.show("select once.incarnation_renew()").await;
    assert_eq!(fed.copy.show(future).await, "");
    switch(&fed).await;
}
