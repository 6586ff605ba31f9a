//! Two machines over one table: machine_check tells where one would meddle with the other's teardowns.

use crate::playground::Playground;
use crate::world::{define, role, world};

/// Another machine over the jobs, by a status of its own, with this flag and marker.
fn other(flag: &str, marker: &str) -> String {
    format!(
        r#"{{"machine": "other", "table": "job", "id": "id", "status": "note", "status_types": ["a", "z"],
            "terminal": ["z"], "cancel": {{"flag": "{flag}", "to": "z"}},
            "refund": {{"items": "item", "item_id": "id", "subject": "job_id", "marker": "{marker}",
                "marked": "returned", "amount": "points", "wallet": "wallet", "wallet_id": "customer",
                "account": "customer", "balance": "points"}}}}"#
    )
}

/// What machine_check says of shared things.
async fn shared(play: &Playground, machine: &str) -> String {
    let check = format!(
        "select problem from once.machine_check('{machine}') where problem ~ 'too' and hint <> '' order by 1"
    );
    play.show(&check).await
}

#[tokio::test]
async fn a_shared_flag_and_shared_items_are_told_of_both() {
    let play = world().await;
    play.show("alter table job add other_flag boolean not null default false; alter table item add gone text")
        .await;
    let flag = |name: &str| {
        format!(r#"the cancel flag "cancel_requested" is that of machine "{name}", too"#)
    };
    let items = |name: &str| {
        format!(r#"its items are those of machine "{name}", too: by "job_id", marked in "settled""#)
    };
    for (own_flag, marker, flagged, marked) in [
        ("cancel_requested", "settled", true, true),
        ("other_flag", "settled", false, true),
        ("cancel_requested", "gone", true, false),
        ("other_flag", "gone", false, false),
    ] {
        define(&play, &other(own_flag, marker)).await;
        for (machine, its) in [("job", "other"), ("other", "job")] {
            let told = [(marked, items(its)), (flagged, flag(its))];
            let told: Vec<_> = told.into_iter().filter(|t| t.0).map(|t| t.1).collect();
            assert_eq!(shared(&play, machine).await, told.join("\n"), "{machine}");
        }
    }
}

#[tokio::test]
async fn a_machine_of_another_owner_is_not_named() {
    let play = world().await;
    role(&play, "sharing_owner", "use").await;
    role(&play, "sharing_clerk", "observe").await;
    play.show("grant select on job to sharing_clerk").await;
    let owned = other("cancel_requested", "gone");
    let owned = owned.replacen('{', r#"{"owner": "sharing_owner", "#, 1);
    play.show("alter table item add gone text").await;
    define(&play, &owned).await;
    let clerk = play.another_as("sharing_clerk").await;
    assert_eq!(
        shared(&clerk, "job").await,
        r#"the cancel flag "cancel_requested" is that of a machine of another owner, too"#
    );
}
