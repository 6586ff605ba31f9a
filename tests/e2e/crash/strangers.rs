//! A dump restored where its roles are missing: everything comes back, and what was closed stays closed.

use pg_once_tests::Cluster;

use crate::playground::Playground;
use crate::{copy, on, with_shop};

/// Restores the dump of `shop` as far as the roles allow; what it complained about, line by line.
fn restore(old: &Cluster, new: &Cluster) -> Vec<String> {
    let dump = ["-d", "shop", "-Fc", "-f", "dump"];
    old.run("pg_dump", &dump).unwrap();
    copy(&old.directory().join("dump"), &new.directory().join("dump"));
    new.psql("postgres", "create database shop").unwrap();
    let output = new
        .command("pg_restore")
        .args(["-d", "shop", "dump"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let errors = text.lines().filter(|line| line.contains("error:"));
    errors.map(str::to_owned).collect()
}

async fn as_role(cluster: &Cluster, role: &str) -> Playground {
    Playground::on_as(cluster, role, "shop").await
}

const OPTIONS: &str = "
    select string_agg(s.scope || ' ' || once.scope_get(s.scope), E'\\n' order by s.scope)
      from once.scope as s";

const GRANTS: &str = "
    select string_agg(distinct role_name || ' ' || kind, ', ') from once.role_grant";

/// pg_restore grants on an object all or nothing, so one missing role costs the others their rights; what
/// the extension remembers gives them back.
const GRANT_AGAIN: &str = "
    select once.grant_role(r.oid, g.kind)
      from once.role_grant as g join pg_roles as r on r.rolname = g.role_name";

const KEYS: &str = "select count(*), count(*) filter (where scope = 'owned') from once.key";

const CLAIM: &str = "select outcome from once.key_claim('owned', 'k')";

/// Scopes with and without an owner, rights, and keys in each.
async fn with_owned_scope(cluster: &Cluster) -> Playground {
    let play = with_shop(cluster).await;
    play.show(
        r#"create role team_a login; create role bob login;
           select once.grant_role('team_a', 'operate'), once.grant_role('bob', 'use');
           select once.scope_set('owned', '{"owner": "team_a", "lease": "5 min"}');
           select once.scope_set('other', '{"keep_request": true, "max_attempts": 3, "gone_for": "9 days"}');
           select once.key_claim('owned', 'k'), once.key_claim('other', 'k', '1')"#,
    )
    .await;
    play
}

#[tokio::test]
async fn a_dump_restored_without_the_owners_role_is_whole_and_closed() {
    let old = Cluster::launch().unwrap();
    let play = with_owned_scope(&old).await;
    let (options, grants, keys) = (
        play.show(OPTIONS).await,
        play.show(GRANTS).await,
        play.show(KEYS).await,
    );
    let new = Cluster::launch().unwrap();
    new.psql("postgres", "create role bob login").unwrap();
    for error in restore(&old, &new) {
        assert!(
            error.contains("role \"team_a\" does not exist") && !error.contains("COPY"),
            "{error}"
        );
    }
    let restored = on(&new, "shop").await;
    assert_eq!(restored.show(OPTIONS).await, options);
    assert_eq!(restored.show(GRANTS).await, grants);
    assert_eq!(restored.show(KEYS).await, keys);

    // bob has his rights again, and they open no scope that was closed to him.
    restored.show(GRANT_AGAIN).await;
    let bob = as_role(&new, "bob").await;
    let refused = bob.refused(CLAIM).await;
    assert_eq!(refused.code, "42501");
    assert!(refused.message.contains("scope \"owned\""), "{refused:?}");
    let other = "select outcome from once.key_claim('other', 'new')";
    assert_eq!(bob.show(other).await, "claimed");
    assert_eq!(restored.show(CLAIM).await, "in_progress", "a superuser");

    // The number that the owner had may be anybody's here; only its name counts.
    restored
        .show(
            "create role stranger login; select once.grant_role('stranger', 'operate');
             update once.scope set owner = 'stranger'::regrole where scope = 'owned'",
        )
        .await;
    let stranger = as_role(&new, "stranger").await;
    assert_eq!(stranger.code(CLAIM).await, "42501");
    let set = r#"select once.scope_set('owned', '{"owner": null}')"#;
    assert_eq!(stranger.code(set).await, "42501");
    let owner = "select once.scope_get('owned') ->> 'owner'";
    assert_eq!(restored.show(owner).await, "team_a");
}

#[tokio::test]
async fn once_the_owners_role_is_made_again_it_has_its_scope_and_its_rights() {
    let old = Cluster::launch().unwrap();
    with_owned_scope(&old).await;
    let new = Cluster::launch().unwrap();
    restore(&old, &new);
    let restored = on(&new, "shop").await;
    restored
        .show("create role team_a login; select once.grant_role('team_a', 'use')")
        .await;
    let team = as_role(&new, "team_a").await;
    assert_eq!(team.show(CLAIM).await, "in_progress");
    // What was remembered for the name counts: operate, too.
    let get = "select status from once.key_get('owned', 'k')";
    assert_eq!(team.show(get).await, "running");
    restored
        .show("select once.revoke_role('team_a', 'operate'); select once.revoke_role('team_a', 'use')")
        .await;
    assert_eq!(team.code(CLAIM).await, "42501");
    assert_eq!(restored.show(GRANTS).await, "bob use");
}
