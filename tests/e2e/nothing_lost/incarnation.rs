//! Copies of a cluster that live on as two, databases that are restored beside their source, templates, and a logical
//! subscriber that becomes the primary: stored transaction ids and role numbers count in their own incarnation alone.

use pg_once_tests::Cluster;

use crate::content::{self, Tokens};
use crate::playground::Playground;
use crate::{DATABASE, on, with_everything};

const PRESENT: &str = "select once.incarnation()";

/// A cluster and a physical copy of it, both running: one system identifier.
async fn split() -> (Cluster, Cluster) {
    let original = Cluster::launch().unwrap();
    let copy = original.standby().unwrap();
    copy.wait_caught_up(&original).await.unwrap();
    copy.promote().await.unwrap();
    (original, copy)
}

/// The same roles in another order: their numbers are other roles' there.
fn shuffled_roles(cluster: &Cluster) {
    let mut roles: Vec<&str> = content::ROLES.trim().split(';').map(str::trim).collect();
    roles.retain(|role| !role.is_empty());
    let team = roles.remove(0);
    roles.reverse();
    let rest = roles.join("; ").replace(" in role team", "");
    cluster
        .psql("postgres", &format!("{rest}; {team}; grant team to worker"))
        .unwrap();
}

/// Dumps `from`'s database into a new one of `to`.
async fn moved(from: &Cluster, to: &Cluster) -> Playground {
    from.run("pg_dump", &["-Fc", "-f", "dump", "-d", DATABASE])
        .unwrap();
    if from.port() != to.port() {
        from.hand_over("dump", to).unwrap();
    }
    to.psql("postgres", "create database moved").unwrap();
    to.run("pg_restore", &["--exit-on-error", "-d", "moved", "dump"])
        .unwrap();
    on(to, "moved", "").await
}

/// The same, and goes on there.
async fn carry_over(from: &Cluster, to: &Cluster, tokens: &Tokens) {
    let moved = moved(from, to).await;
    let source = on(from, DATABASE, "").await;
    assert_ne!(moved.show(PRESENT).await, source.show(PRESENT).await);
    content::goes_on(tokens, async |role: &str| on(to, "moved", role).await).await;
}

#[tokio::test]
async fn half_of_a_split_cluster_goes_into_the_other_whose_transaction_ids_are_lower() {
    let (original, mut copy) = split().await;
    copy.far_ahead().unwrap();
    shuffled_roles(&original);
    let (_, tokens) = with_everything(&copy).await;
    carry_over(&copy, &original, &tokens).await;
}

#[tokio::test]
async fn half_of_a_split_cluster_goes_into_the_other_whose_transaction_ids_are_higher() {
    let (original, mut copy) = split().await;
    copy.far_ahead().unwrap();
    shuffled_roles(&copy);
    let (_, tokens) = with_everything(&original).await;
    carry_over(&original, &copy, &tokens).await;
}

#[tokio::test]
async fn a_clone_by_point_in_time_recovery_works_beside_its_original_and_goes_back_into_it() {
    let archiving = Cluster::builder().setting("archive_mode", "on");
    let original = archiving.launch().unwrap();
    original.archive().unwrap();
    let mut clone = original.base_backup(&[]).unwrap();
    let (play, tokens) = with_everything(&original).await;
    let emit = "select once.topic_set('both', '{}'); select once.outbox_emit('both', to_json(n))
                  from unnest(array['one', 'two', 'three']) n";
    play.show(emit).await;
    play.show("select pg_create_restore_point('yesterday')")
        .await;
    play.show("select once.outbox_emit('both', '\"today\"')")
        .await;
    clone.recover_to("yesterday", &original).await.unwrap();
    clone.far_ahead().unwrap();
    let here = on(&clone, DATABASE, "").await;
    assert_eq!(here.show(PRESENT).await, play.show(PRESENT).await);
    here.show("select once.outbox_emit('both', to_json(n)) from unnest(array['four', 'five']) n")
        .await;
    let take = "select string_agg(payload #>> '{}', ' ') from once.outbox_take('both', max => MAX)
                 where once.outbox_ack('both', 'default', token, array[event_id]) > 0";
    assert_eq!(here.show(&take.replace("MAX", "2")).await, "one two");
    let moved = moved(&clone, &original).await;
    assert_ne!(moved.show(PRESENT).await, play.show(PRESENT).await);
    assert_eq!(
        moved.show(&take.replace("MAX", "9")).await,
        "three four five"
    );
    let sessions = async |role: &str| on(&original, "moved", role).await;
    content::goes_on(&tokens, sessions).await;
    // The original has gone on by itself.
    let sessions = async |role: &str| on(&original, DATABASE, role).await;
    content::goes_on(&tokens, sessions).await;
}

#[tokio::test]
async fn a_dump_goes_on_in_the_cluster_that_it_was_taken_from() {
    let cluster = Cluster::launch().unwrap();
    let (_, tokens) = with_everything(&cluster).await;
    carry_over(&cluster, &cluster, &tokens).await;
}

#[tokio::test]
async fn a_physical_copy_and_a_template_keep_the_incarnation_and_go_on() {
    let cluster = Cluster::launch().unwrap();
    let (play, tokens) = with_everything(&cluster).await;
    let present = play.show(PRESENT).await;
    let copy = cluster.standby().unwrap();
    copy.wait_caught_up(&cluster).await.unwrap();
    copy.promote().await.unwrap();
    let promoted = on(&copy, DATABASE, "").await;
    assert_eq!(promoted.show(PRESENT).await, present);
    content::goes_on(&tokens, async |role: &str| on(&copy, DATABASE, role).await).await;
    drop(play);
    let make = format!("create database twin template {DATABASE}");
    pg_once_tests::race::poll_async("nobody to be in the template", async || {
        Ok(cluster.psql("postgres", &make).ok())
    })
    .await
    .unwrap();
    let twin = on(&cluster, "twin", "").await;
    assert_eq!(twin.show(PRESENT).await, present);
    content::goes_on(&tokens, async |role: &str| on(&cluster, "twin", role).await).await;
}

#[tokio::test]
async fn a_renewed_incarnation_begins_a_series_in_which_all_that_is_pending_is_delivered() {
    let cluster = Cluster::launch().unwrap();
    let (play, tokens) = with_everything(&cluster).await;
    let present = play.show(PRESENT).await;
    let boss = on(&cluster, DATABASE, "boss").await;
    let renew = "select once.incarnation_renew()";
    assert_eq!(
        boss.code(renew).await,
        "42501",
        "the extension's owner alone"
    );
    play.show(renew).await;
    assert_ne!(play.show(PRESENT).await, present);
    content::goes_on(&tokens, async |role: &str| {
        on(&cluster, DATABASE, role).await
    })
    .await;
    assert_eq!(play.show("select count(*) from once.series").await, "2");
}

#[tokio::test]
async fn doctor_reports_events_of_transactions_that_are_still_to_come() {
    let cluster = Cluster::launch().unwrap();
    let (play, _) = with_everything(&cluster).await;
    let told = "select level, hint like '%incarnation_renew%' from once.doctor() where problem like 'events come from the future%'";
    assert_eq!(play.show(told).await, "");
    play.show("update once.event_0 set xid = xid + 1000000")
        .await;
    assert_eq!(play.show(told).await, "error|t");
    play.show("select once.incarnation_renew()").await;
    assert_eq!(play.show(told).await, "");
}

/// Owners and grants by their stored names.
pub const NAMES: &str = "
    select string_agg(distinct what || ' ' || name, ', ' order by what || ' ' || name)
      from (select 'scope', owner_name from once.scope union all
            select 'topic', owner_name from once.topic union all
            select 'machine', owner_name from once.machine union all
            select 'grant', role_name from once.role_grant) s (what, name)
     where name is not null";

pub async fn rename_team(play: &Playground) {
    play.show("alter role team rename to crew; alter role stranger rename to guest")
        .await;
    play.show("create role team; create role stranger login")
        .await;
}

#[tokio::test]
async fn a_renamed_owner_keeps_his_things_through_a_sweep_and_a_restore() {
    let cluster = Cluster::launch().unwrap();
    let (play, _) = with_everything(&cluster).await;
    let before = play.show(NAMES).await;
    assert!(
        before.contains("scope team") && before.contains("grant stranger"),
        "{before}"
    );
    let after = before
        .replace(" team", " crew")
        .replace(" stranger", " guest");
    let mut after: Vec<&str> = after.split(", ").collect();
    after.sort_unstable();
    let after = after.join(", ");
    rename_team(&play).await;
    play.show("select count(*) from once.sweep()").await;
    assert_eq!(play.show(NAMES).await, after);
    let new = Cluster::launch().unwrap();
    cluster.copy_roles(&new).unwrap();
    let moved = moved(&cluster, &new).await;
    // Renamed before anybody called anything but a sweep there.
    moved.show("select count(*) from once.sweep()").await;
    moved.show("alter role crew rename to gang").await;
    moved.show("create role crew").await;
    moved.show("select count(*) from once.sweep()").await;
    for what in ["scope", "machine"] {
        let name = format!("{what} gang");
        assert!(moved.show(NAMES).await.contains(&name), "{name}");
    }
    let owner =
        "select once.scope_get(scope) ->> 'owner' from once.scope where owner is not null limit 1";
    assert_eq!(moved.show(owner).await, "gang");
}

#[tokio::test]
async fn a_renamed_owner_is_stored_by_his_new_name_with_the_next_set_or_grant() {
    let cluster = Cluster::launch().unwrap();
    let (play, _) = with_everything(&cluster).await;
    let mut name = "team".to_owned();
    for (round, call) in [
        "scope_set('other', '{}')",
        "topic_set('t', '{}')",
        "subscriber_set('t', 'default', '{}')",
        "grant_role('boss', 'use')",
    ]
    .iter()
    .enumerate()
    {
        let next = format!("crew{round}");
        play.show(&format!(
            "alter role {name} rename to {next}; create role {name}"
        ))
        .await;
        play.show(&format!("select once.{call}")).await;
        let names = play.show(NAMES).await;
        for what in ["scope", "topic", "machine"] {
            assert!(names.contains(&format!("{what} {next}")), "{call}: {names}");
        }
        name = next;
    }
}
