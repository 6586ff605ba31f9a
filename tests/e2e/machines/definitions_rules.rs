//! The six rules of claim states, and the checks of what statuses may follow each other: for each a definition
//! that breaks only it.

use crate::definitions::{faults, fits_after, only, open, right, told, without};
use serde_json::{Value, json};

/// The claim state of the only step's worker.
fn claim(d: &mut Value, into: &str, revert: &str) {
    d["steps"][0]["claim_state"]["worker"] = json!([into, revert]);
}

fn push(d: &mut Value, list: &str, value: Value) {
    d[list].as_array_mut().unwrap().push(value);
}

/// A second step, for who boxes what is ready.
fn packing(into: &str, revert: &str, to: &str) -> Value {
    json!({"step_key": "pack", "status": "failed", "claim_state": {"packer": [into, revert]},
           "successful_state": {"packer": to}})
}

#[tokio::test]
async fn rule_1_a_claim_state_is_a_pair_of_texts() {
    let play = open().await;
    let pair =
        "steps[0].claim_state.worker: must be a pair of texts, [claim_into, revert_to] (rule 1)";
    for value in [
        json!("running"),
        json!(["running"]),
        json!(["running", "ready", "new"]),
        json!(["running", 7]),
        json!([null, "ready"]),
        json!({"into": "running"}),
        json!([]),
        Value::Null,
    ] {
        told(&play, pair)
            .of(|d| d["steps"][0]["claim_state"]["worker"] = value)
            .await;
    }
    let bare = pair.replace(".worker", "");
    let change = |d: &mut Value| {
        d["steps"][0]["claim_state"] = json!([]);
        d["steps"][0]["successful_state"] = json!("done");
    };
    only(&play, change, &bare).await;
    let object = "steps[0].claim_state: must be [claim_into, revert_to], or an object of those by requester, not a text";
    told(&play, object)
        .of(|d| d["steps"][0]["claim_state"] = json!("running"))
        .await;
}

#[tokio::test]
async fn rule_2_both_are_in_status_types() {
    let play = open().await;
    let at = "steps[0].claim_state.worker:";
    let fault = format!("{at} claim_into \"walking\" is not in status_types (rule 2)");
    only(&play, |d| claim(d, "walking", "ready"), &fault).await;
    let fault = format!("{at} revert_to \"red\" is not in status_types (rule 2)");
    only(&play, |d| claim(d, "running", "red"), &fault).await;
}

#[tokio::test]
async fn rule_3_a_claim_state_is_not_its_own_revert() {
    let play = open().await;
    let fault =
        "steps[0].claim_state.worker: claim_into and revert_to are both \"running\" (rule 3)";
    only(&play, |d| claim(d, "running", "running"), fault).await;
}

#[tokio::test]
async fn rule_4_a_claim_state_is_not_the_status_of_its_step() {
    let play = open().await;
    let fault = "steps[0].claim_state.worker: claim_into \"running\" is the step's status (rule 4)";
    only(&play, |d| d["steps"][0]["status"] = json!("running"), fault).await;
}

#[tokio::test]
async fn rule_5_a_claim_state_is_not_its_own_success() {
    let play = open().await;
    let fault =
        "steps[0].claim_state.worker: claim_into \"running\" is its successful_state (rule 5)";
    told(&play, fault)
        .of(|d| d["steps"][0]["successful_state"]["worker"] = json!("running"))
        .await;
    told(&play, fault)
        .of(|d| d["steps"][0]["successful_state"] = json!({"*": "running"}))
        .await;
}

#[tokio::test]
async fn rule_6_the_same_claim_state_has_the_same_revert_everywhere() {
    let play = open().await;
    let fault = "steps[1].claim_state.packer: \"running\" reverts to \"failed\" here and to \"ready\" in steps[0].claim_state.worker (rule 6)";
    told(&play, fault)
        .of(|d| push(d, "steps", packing("running", "failed", "done")))
        .await;
    let change = |d: &mut Value| {
        d["steps"][0]["claim_state"]["*"] = json!(["running", "new"]);
        d["steps"][0]["successful_state"]["*"] = json!("done");
    };
    let fault = "steps[0].claim_state.worker: \"running\" reverts to \"ready\" here and to \"new\" in steps[0].claim_state.* (rule 6)";
    only(&play, change, fault).await;
    fits_after(&play, "", |d| {
        push(d, "steps", packing("running", "ready", "done"))
    })
    .await;
}

#[tokio::test]
async fn every_status_named_anywhere_is_declared() {
    let play = open().await;
    for (pointer, path) in [
        ("/transitions/0/from/0", "transitions[0].from[0]"),
        ("/transitions/0/to", "transitions[0].to"),
        ("/steps/0/status", "steps[0].status"),
        (
            "/steps/0/successful_state/worker",
            "steps[0].successful_state.worker",
        ),
        ("/cancel/to", "cancel.to"),
    ] {
        let fault = format!("{path}: \"nowhere\" is not in status_types");
        told(&play, &fault)
            .of(|d| *d.pointer_mut(pointer).unwrap() = json!("nowhere"))
            .await;
    }
    told(&play, "terminal[2]: \"gone\" is not in status_types")
        .of(|d| push(d, "terminal", json!("gone")))
        .await;
    told(&play, "terminal[2]: must not be empty")
        .of(|d| push(d, "terminal", json!("")))
        .await;
    told(&play, "status_types[6]: \"new\" is there twice")
        .of(|d| push(d, "status_types", json!("new")))
        .await;
}

#[tokio::test]
async fn statuses_and_origins_are_not_empty_lists() {
    let play = open().await;
    let fault = "transitions[1].from: must not be empty";
    only(&play, |d| d["transitions"][1]["from"] = json!([]), fault).await;
    // Nothing that names a status is a fault beside it.
    told(&play, "status_types: must not be empty")
        .of(|d| d["status_types"] = json!([]))
        .await;
}

#[tokio::test]
async fn nothing_leads_out_of_a_terminal_status() {
    let play = open().await;
    let out = "\"done\" is terminal: nothing leads out of it";
    let fault = format!("transitions[0].from[1]: {out}");
    told(&play, &fault)
        .of(|d| d["transitions"][0]["from"] = json!(["new", "done"]))
        .await;
    let fault = format!("steps[1].status: {out}");
    let step = json!({"step_key": "again", "status": "done", "successful_state": {"*": "failed"}});
    only(&play, |d| push(d, "steps", step), &fault).await;
}

#[tokio::test]
async fn a_claim_state_is_no_transition_s_and_not_terminal() {
    let play = open().await;
    let is = "\"running\" is a claim state (steps[0].claim_state.worker)";
    let fault = format!("transitions[0].from[1]: {is}: no transition has it");
    told(&play, &fault)
        .of(|d| d["transitions"][0]["from"] = json!(["new", "running"]))
        .await;
    let fault = format!("transitions[1].to: {is}: no transition has it");
    told(&play, &fault)
        .of(|d| d["transitions"][1]["to"] = json!("running"))
        .await;
    let fault = format!("terminal[2]: {is} and cannot be terminal");
    only(&play, |d| push(d, "terminal", json!("running")), &fault).await;
}

#[tokio::test]
async fn no_step_begins_in_a_claim_state_of_another_and_no_success_leads_into_one() {
    let play = open().await;
    let is = "\"running\" is a claim state (steps[0].claim_state.worker)";
    let step = json!({"step_key": "odd", "status": "running", "successful_state": {"*": "done"}});
    let fault = format!("steps[1].status: {is}: no step begins in it");
    only(&play, |d| push(d, "steps", step), &fault).await;
    let step = json!({"step_key": "odd", "status": "failed", "successful_state": {"*": "running"}});
    let fault = format!("steps[1].successful_state.*: {is}: no success leads into it");
    only(&play, |d| push(d, "steps", step), &fault).await;
    // Of another requester of the same step.
    let change = |d: &mut Value| d["steps"][0]["successful_state"]["boss"] = json!("running");
    let fault = format!("steps[0].successful_state.boss: {is}: no success leads into it");
    only(&play, change, &fault).await;
}

#[tokio::test]
async fn a_revert_leads_to_a_status_that_waits() {
    let play = open().await;
    let fault = "steps[0].claim_state.worker: revert_to \"done\" is terminal";
    only(&play, |d| claim(d, "running", "done"), fault).await;
    let fault = "steps[0].claim_state.worker: revert_to \"cancelled\" is terminal";
    only(&play, |d| claim(d, "running", "cancelled"), fault).await;
    let change = |d: &mut Value| {
        push(d, "status_types", json!("packing"));
        push(d, "steps", packing("packing", "running", "done"));
    };
    let fault = "steps[1].claim_state.packer: revert_to \"running\" is a claim state (steps[0].claim_state.worker)";
    only(&play, change, fault).await;
}

#[tokio::test]
async fn a_step_is_there_once_for_each_status() {
    let play = open().await;
    let same = json!({"step_key": "run", "status": "ready", "successful_state": {"boss": "done"}});
    let fault = "steps[1]: step \"run\" in status \"ready\" is there twice, see steps[0]";
    only(&play, |d| push(d, "steps", same.clone()), fault).await;
    let mut other = same;
    other["status"] = json!("failed");
    fits_after(&play, "", |d| push(d, "steps", other)).await;
}

#[tokio::test]
async fn a_requester_with_a_claim_state_has_somewhere_to_go() {
    let play = open().await;
    let none = "has no successful_state, neither its own nor that of \"*\"";
    let change = |d: &mut Value| d["steps"][0]["claim_state"]["boss"] = json!(["running", "ready"]);
    only(&play, change, &format!("steps[0].claim_state.boss: {none}")).await;
    // Anybody may claim, but only the worker could finish.
    let change = |d: &mut Value| d["steps"][0]["claim_state"]["*"] = json!(["running", "ready"]);
    only(&play, change, &format!("steps[0].claim_state.*: {none}")).await;
    fits_after(&play, "", |d| {
        d["steps"][0]["claim_state"]["boss"] = json!(["running", "ready"]);
        d["steps"][0]["successful_state"]["*"] = json!("done");
    })
    .await;
    // The other way round is a plain move.
    fits_after(&play, "", |d| {
        d["steps"][0]["successful_state"]["boss"] = json!("done")
    })
    .await;
}

#[tokio::test]
async fn the_cancelled_status_is_terminal_and_nobody_else_s_target() {
    let play = open().await;
    told(&play, "cancel.to: \"failed\" is not terminal")
        .of(|d| d["cancel"]["to"] = json!("failed"))
        .await;
    let only_finish = "\"cancelled\" is cancel.to: only cancel_finish leads there";
    let fault = format!("transitions[1].to: {only_finish}");
    told(&play, &fault)
        .of(|d| d["transitions"][1]["to"] = json!("cancelled"))
        .await;
    let fault = format!("steps[0].successful_state.worker: {only_finish}");
    let change = |d: &mut Value| d["steps"][0]["successful_state"]["worker"] = json!("cancelled");
    only(&play, change, &fault).await;
    // Of a revert only where it is not terminal, which would be the revert's fault already.
    let mut d = right();
    d["cancel"]["to"] = json!("failed");
    claim(&mut d, "running", "failed");
    assert_eq!(
        faults(&play, &d).await,
        [
            "cancel.to: \"failed\" is not terminal",
            "steps[0].claim_state.worker: revert_to \"failed\" is cancel.to: only cancel_finish leads there"
        ]
    );
}

#[tokio::test]
async fn a_refund_needs_a_cancel() {
    let play = open().await;
    let fault = "refund: needs the member \"cancel\": only a cancelled row is refunded";
    only(&play, |d| without(d, "cancel"), fault).await;
    fits_after(&play, "", |d| without(d, "refund")).await;
}
