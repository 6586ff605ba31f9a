//! The six rules of claim states, and the checks of what statuses may follow each other: for each a definition
//! that breaks only it.

use crate::cases::{cases, each, open};

#[tokio::test]
async fn rule_1_a_claim_state_is_a_pair_of_texts() {
    let play = open().await;
    let values = r#"
        "running" // ["running"] // ["running", "ready", "new"] // ["running", 7] // [null, "ready"]
        {"into": "running"} // [] // null"#;
    let table = "
        # a claim state {0}
        /steps/0/claim_state/worker = {0}
        ! steps[0].claim_state.worker: must be a pair of texts, [claim_into, revert_to] (rule 1)";
    each(&play, values, table).await;
    let table = r#"
        # an empty list for any requester
        /steps/0/claim_state = []
        /steps/0/successful_state = "done"
        ! steps[0].claim_state: must be a pair of texts, [claim_into, revert_to] (rule 1)
        # a text for any requester
        /steps/0/claim_state = "running"
        ! steps[0].claim_state: must be [claim_into, revert_to], or one per requester in an object, not a text"#;
    cases(&play, table).await;
}

#[tokio::test]
async fn rule_2_both_are_in_status_types() {
    let table = r#"
        # claim_into
        /steps/0/claim_state/worker = ["walking", "ready"]
        ! steps[0].claim_state.worker: claim_into "walking" is not in status_types (rule 2)
        # revert_to
        /steps/0/claim_state/worker = ["running", "red"]
        ! steps[0].claim_state.worker: revert_to "red" is not in status_types (rule 2)"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn rule_3_a_claim_state_is_not_its_own_revert() {
    let table = r#"
        # both the same
        /steps/0/claim_state/worker = ["running", "running"]
        ! steps[0].claim_state.worker: claim_into and revert_to are both "running" (rule 3)"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn rule_4_a_claim_state_is_not_the_status_of_its_step() {
    let table = r#"
        # both the same
        /steps/0/status = "running"
        ! steps[0].claim_state.worker: claim_into "running" is the step's status (rule 4)"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn rule_5_a_claim_state_is_not_its_own_success() {
    let table = r#"
        # of the requester
        /steps/0/successful_state/worker = "running"
        ! steps[0].claim_state.worker: claim_into "running" is its successful_state (rule 5)
        # of any requester
        /steps/0/successful_state = {"*": "running"}
        ! steps[0].claim_state.worker: claim_into "running" is its successful_state (rule 5)"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn rule_6_the_same_claim_state_has_the_same_revert_everywhere() {
    let table = r#"
        # in another step
        /steps/- = {"step_key": "pack", "status": "failed", "claim_state": {"packer": ["running", "failed"]}, "successful_state": {"packer": "done"}}
        ! steps[1].claim_state.packer: "running" reverts to "failed" here and to "ready" in steps[0].claim_state.worker (rule 6)
        # of another requester
        /steps/0/claim_state/* = ["running", "new"]
        /steps/0/successful_state/* = "done"
        ! steps[0].claim_state.worker: "running" reverts to "ready" here and to "new" in steps[0].claim_state.* (rule 6)
        # the same in another step
        /steps/- = {"step_key": "pack", "status": "failed", "claim_state": {"packer": ["running", "ready"]}, "successful_state": {"packer": "done"}}"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn every_status_named_anywhere_is_declared() {
    let play = open().await;
    let places = "
        transitions/0/from/0 | transitions[0].from[0] // transitions/0/to | transitions[0].to
        steps/0/successful_state/worker | steps[0].successful_state.worker
        steps/0/status | steps[0].status // cancel/to | cancel.to // terminal/- | terminal[2]";
    let table = r#"
        # {1}
        /{0} = "nowhere"
        ! {1}: "nowhere" is not in status_types"#;
    each(&play, places, table).await;
    let table = r#"
        # an empty terminal status
        /terminal/- = ""
        ! terminal[2]: must not be empty
        # a status twice
        /status_types/- = "new"
        ! status_types[6]: "new" is there twice"#;
    cases(&play, table).await;
}

#[tokio::test]
async fn statuses_and_origins_are_not_empty_lists() {
    let table = r#"
        # no origin
        /transitions/1/from = []
        ! transitions[1].from: must not be empty
        # no status; nothing that names one is a fault beside it
        /status_types = []
        ! status_types: must not be empty"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn nothing_leads_out_of_a_terminal_status() {
    let table = r#"
        # a transition
        /transitions/0/from = ["new", "done"]
        ! transitions[0].from[1]: "done" is terminal: nothing leads out of it
        # a step
        /steps/- = {"step_key": "again", "status": "done", "successful_state": {"*": "failed"}}
        ! steps[1].status: "done" is terminal: nothing leads out of it"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn a_claim_state_is_no_transition_s_and_not_terminal() {
    let table = r#"
        # a transition from it
        /transitions/0/from = ["new", "running"]
        ! transitions[0].from[1]: "running" is a claim state (steps[0].claim_state.worker): no transition has it
        # a transition to it
        /transitions/1/to = "running"
        ! transitions[1].to: "running" is a claim state (steps[0].claim_state.worker): no transition has it
        # terminal
        /terminal/- = "running"
        ! terminal[2]: "running" is a claim state (steps[0].claim_state.worker) and cannot be terminal"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn no_step_begins_in_a_claim_state_of_another_and_no_success_leads_into_one() {
    let table = r#"
        # a step that begins in it
        /steps/- = {"step_key": "odd", "status": "running", "successful_state": {"*": "done"}}
        ! steps[1].status: "running" is a claim state (steps[0].claim_state.worker): no step begins in it
        # a step that leads into it
        /steps/- = {"step_key": "odd", "status": "failed", "successful_state": {"*": "running"}}
        ! steps[1].successful_state.*: "running" is a claim state (steps[0].claim_state.worker): no success leads into it
        # another requester of the same step
        /steps/0/successful_state/boss = "running"
        ! steps[0].successful_state.boss: "running" is a claim state (steps[0].claim_state.worker): no success leads into it"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn a_revert_leads_to_a_status_that_waits() {
    let table = r#"
        # done
        /steps/0/claim_state/worker = ["running", "done"]
        ! steps[0].claim_state.worker: revert_to "done" is terminal
        # cancelled
        /steps/0/claim_state/worker = ["running", "cancelled"]
        ! steps[0].claim_state.worker: revert_to "cancelled" is terminal
        # another claim state
        /status_types/- = "packing"
        /steps/- = {"step_key": "pack", "status": "failed", "claim_state": {"packer": ["packing", "running"]}, "successful_state": {"packer": "done"}}
        ! steps[1].claim_state.packer: revert_to "running" is a claim state (steps[0].claim_state.worker)"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn a_step_is_there_once_for_each_status() {
    let table = r#"
        # in the same status
        /steps/- = {"step_key": "run", "status": "ready", "successful_state": {"boss": "done"}}
        ! steps[1]: step "run" in status "ready" is there twice, see steps[0]
        # in another status
        /steps/- = {"step_key": "run", "status": "failed", "successful_state": {"boss": "done"}}"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn a_requester_with_a_claim_state_has_somewhere_to_go() {
    let table = r#"
        # a claim of the boss alone
        /steps/0/claim_state/boss = ["running", "ready"]
        ! steps[0].claim_state.boss: has no successful_state, neither its own nor that of "*"
        # anybody may claim, but only the worker could finish
        /steps/0/claim_state/* = ["running", "ready"]
        ! steps[0].claim_state.*: has no successful_state, neither its own nor that of "*"
        # a claim of the boss, and a success of anybody
        /steps/0/claim_state/boss = ["running", "ready"]
        /steps/0/successful_state/* = "done"
        # the other way round is a plain move
        /steps/0/successful_state/boss = "done""#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn the_cancelled_status_is_terminal_and_nobody_else_s_target() {
    let table = r#"
        # not terminal
        /cancel/to = "failed"
        ! cancel.to: "failed" is not terminal
        # the target of a transition
        /transitions/1/to = "cancelled"
        ! transitions[1].to: "cancelled" is cancel.to: only cancel_finish leads there
        # the target of a success
        /steps/0/successful_state/worker = "cancelled"
        ! steps[0].successful_state.worker: "cancelled" is cancel.to: only cancel_finish leads there
        # the target of a revert, only where it is not terminal, which would be the revert's fault already
        /cancel/to = "failed"
        /steps/0/claim_state/worker = ["running", "failed"]
        ! cancel.to: "failed" is not terminal
        ! steps[0].claim_state.worker: revert_to "failed" is cancel.to: only cancel_finish leads there"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn a_refund_needs_a_cancel() {
    let table = r#"
        # without
        /cancel gone
        ! refund: needs the member "cancel": only a cancelled row is refunded
        # neither
        /refund gone"#;
    cases(&open().await, table).await;
}
