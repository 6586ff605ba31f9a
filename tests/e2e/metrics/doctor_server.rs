//! What doctor says of the server's settings and slots: in clusters of their own, because it holds for every database.

use super::doctor::{story, told};
use super::{problems, shop};
use crate::playground::Playground;
use pg_once_tests::{Cluster, race};

/// Waits until this session has read a setting again.
async fn reloaded(play: &Playground, name: &str, value: &str) {
    play.show(&format!("alter system set {name} = '{value}'"))
        .await;
    play.show("select pg_reload_conf()").await;
    race::poll_async(name, async || {
        Ok((play.show(&format!("show {name}")).await == value).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn settings_of_the_servers_own_file_that_cost_what_is_promised() {
    let builder = Cluster::builder()
        .setting("synchronous_commit", "off")
        .setting("once.janitor_databases", "shop");
    let (_cluster, play) = shop(builder).await;
    play.show("select * from once.sweep()").await;
    let lines = "
        ! warning | synchronous_commit is off | configuration file
        ! warning | once.janitor_databases is set, but there is no background worker | shared_preload_libraries";
    story(&play, lines).await;
    // The setting goes with the worker, whichever database it names.
    reloaded(&play, "once.janitor_databases", "").await;
    assert_eq!(told(&play, "background worker").await, "");
    reloaded(&play, "synchronous_commit", "on").await;
    assert_eq!(problems(&play).await, "");
}
