//! Grants of before the update: remembered, applied to what is new, the user's own in a dump, and never given to
//! somebody who was shut out by hand.

use crate::next::{fresh, old, update};
use crate::playground::Playground;

/// The routines that a role may call.
async fn may(play: &Playground, role: &str) -> String {
    play.show(&format!(
        "select coalesce(string_agg(proname, ' ' order by proname::text), '') from pg_proc
          where pronamespace = 'once'::regnamespace and has_function_privilege('{role}', oid, 'execute')
            and has_schema_privilege('{role}', 'once', 'usage')"
    ))
    .await
}

async fn role(play: &Playground, name: &str) {
    play.ensure_role(&format!("{name} login")).await;
}

#[tokio::test]
async fn a_remembered_role_may_call_what_the_update_adds() {
    let (play, fresh) = (old().await, fresh().await);
    for kind in ["use", "operate", "observe"] {
        let name = format!("upgrade_kind_{kind}");
        role(&play, &name).await;
        for database in [&play, &fresh] {
            database
                .show(&format!("select once.grant_role('{name}', '{kind}')"))
                .await;
        }
    }
    role(&play, "upgrade_nobody").await;
    update(&play).await;
    for kind in ["use", "operate", "observe"] {
        let name = format!("upgrade_kind_{kind}");
        let allowed = may(&play, &name).await;
        assert_eq!(allowed, may(&fresh, &name).await, "{kind}");
        assert_eq!(allowed.contains("key_next"), kind != "observe", "{kind}");
    }
    assert_eq!(may(&play, "upgrade_nobody").await, "");
}

#[tokio::test]
async fn rights_that_somebody_gave_or_took_by_hand_stay_so() {
    let play = old().await;
    for name in ["upgrade_given", "upgrade_shut_out", "upgrade_dropped"] {
        role(&play, name).await;
        play.show(&format!("select once.grant_role('{name}', 'use')"))
            .await;
    }
    play.show(
        "grant execute on function once.key_get(text, text) to upgrade_given;
         grant select on once.janitor to upgrade_given;
         revoke usage on schema once from upgrade_shut_out;
         revoke execute on all functions in schema once from upgrade_shut_out;
         drop owned by upgrade_dropped",
    )
    .await;
    update(&play).await;
    let given = may(&play, "upgrade_given").await;
    assert!(
        given.contains("key_get") && given.contains("key_next"),
        "{given}"
    );
    let read = "select has_table_privilege('upgrade_given', 'once.janitor', 'select')";
    assert_eq!(play.show(read).await, "t");
    play.show("select once.revoke_role('upgrade_given', 'use'); grant usage on schema once to upgrade_given")
        .await;
    assert_eq!(may(&play, "upgrade_given").await, "key_get shard_of");
    for name in ["upgrade_shut_out", "upgrade_dropped"] {
        let functions = "select count(*) from pg_proc where pronamespace = 'once'::regnamespace and proname <> 'shard_of'
                            and has_function_privilege('ROLE', oid, 'execute')";
        assert_eq!(
            play.show(&functions.replace("ROLE", name)).await,
            "0",
            "{name}"
        );
    }
    // A role that has nothing any more can go, and is forgotten at the next grant.
    play.show("drop role upgrade_dropped; select once.grant_role('upgrade_given', 'observe')")
        .await;
    let known =
        "select string_agg(role_name || ' ' || kind, ', ' order by role_name) from once.role_grant";
    play.ask(known)
        .is("upgrade_given observe, upgrade_shut_out use")
        .await;
}
