//! The members of a definition: missing, unknown, there twice, of the wrong type, too long, and everything wrong at
//! once.

use crate::cases::{cases, define, each, open, right};
use crate::playground::Playground;
use serde_json::{Value, json};

#[tokio::test]
async fn the_smallest_definition_is_accepted_and_null_members_count_as_left_out() {
    let play = open().await;
    let smallest = json!({"machine": "s", "table": "job", "id": "id", "status": "status", "status_types": ["a"]});
    play.show(&define(&smallest)).await;
    let mut nulls = smallest;
    for name in "version owner terminal transitions steps cancel refund".split(' ') {
        nulls[name] = Value::Null;
    }
    play.show(&define(&nulls)).await;
    let stored = play.show("select once.machine_get('s')").await;
    assert_eq!(
        serde_json::from_str::<Value>(&stored).unwrap(),
        json!({"machine": "s", "table": "public.job", "id": "id", "status": "status", "status_types": ["a"],
               "terminal": [], "transitions": [], "steps": []})
    );
}

#[tokio::test]
async fn what_is_no_definition_at_all_is_a_bad_argument() {
    let play = open().await;
    for argument in ["null", "'[]'", "'\"m\"'", "'7'", "'null'", "'[{}]'"] {
        let refusal = play
            .refused(&format!("select once.machine_define({argument}::json)"))
            .await;
        assert_eq!(refusal.code, "22023", "{argument}");
        assert!(
            refusal.message.starts_with("argument \"definition\""),
            "{refusal:?}"
        );
    }
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    let long = format!("\"{}\"", "x".repeat(1_000_001));
    for value in [deep, long] {
        let call = format!("select once.machine_define('{{\"machine\": {value}}}')");
        assert_eq!(play.code(&call).await, "22023");
    }
}

#[tokio::test]
async fn a_missing_member_is_one_fault() {
    let play = open().await;
    let table = "
        # {0} left out
        /{0} gone
        ! {0}: is missing
        # {0} null
        /{0} = null
        ! {0}: is missing";
    each(
        &play,
        "machine // table // id // status // status_types",
        table,
    )
    .await;
    let members = "
        transitions/0/from | transitions[0].from // transitions/0/to | transitions[0].to
        steps/0/step_key | steps[0].step_key // steps/0/status | steps[0].status
        steps/0/successful_state | steps[0].successful_state
        cancel/flag | cancel.flag // cancel/to | cancel.to
        refund/items | refund.items // refund/item_id | refund.item_id // refund/subject | refund.subject
        refund/marker | refund.marker // refund/marked | refund.marked // refund/amount | refund.amount
        refund/wallet | refund.wallet // refund/wallet_id | refund.wallet_id
        refund/account | refund.account // refund/balance | refund.balance";
    let table = "
        # {1} left out
        /{0} gone
        ! {1}: is missing";
    each(&play, members, table).await;
}

#[tokio::test]
async fn an_unknown_member_is_one_fault_at_every_level() {
    let play = open().await;
    let table = r#"
        # of the machine
        /vesion = 1
        ! unknown member "vesion"; known: machine, table, id, status, version, owner, module, history, status_types, terminal, transitions, steps, cancel, refund
        # of a transition
        /transitions/1/vesion = 1
        ! transitions[1]: unknown member "vesion"; known: from, to, when, emit
        # of a step
        /steps/0/vesion = 1
        ! steps[0]: unknown member "vesion"; known: step_key, status, claim_state, successful_claim_state, successful_state, lease, emit, step_id, action
        # of cancel
        /cancel/vesion = 1
        ! cancel: unknown member "vesion"; known: flag, to
        # of refund
        /refund/vesion = 1
        ! refund: unknown member "vesion"; known: items, item_id, subject, marker, marked, undecided, when, amount, wallet, wallet_id, account, balance
        # what is free stays free
        /steps/0/action = {"vesion": [1, {"b": null}]}"#;
    cases(&play, table).await;
}

#[tokio::test]
async fn a_member_that_an_object_has_twice_is_one_fault_at_every_level() {
    let play = open().await;
    let written = right().to_string();
    let cases = r#"
        "id":"id", => "id":"id","id":"nope", => id: is there twice
        "to":"ready" => "to":"nope","t\u006f":"ready" => transitions[0].to: is there twice
        {"worker":["running","ready"]} => {"worker":7,"worker":["running","ready"]} => steps[0].claim_state.worker: is there twice
        "action":{"handler":"h"} => "action":[{"handler":"h","handler":"h"}] => steps[0].action[0].handler: is there twice"#;
    for case in cases.trim().lines() {
        let (once, rest) = case.trim().split_once(" => ").unwrap();
        let (twice, fault) = rest.split_once(" => ").unwrap();
        let wrong = written.replace(once, twice);
        assert_ne!(wrong, written, "{once}");
        let refusal = play
            .refused(&format!("select once.machine_define($def${wrong}$def$)"))
            .await;
        assert_eq!(refusal.code, "ON003", "{refusal:?}");
        let faults: Vec<_> = refusal.detail.lines().collect();
        assert!(faults.contains(&fault), "{faults:?}");
    }
}

#[tokio::test]
async fn a_member_of_the_wrong_type_is_one_fault() {
    let play = open().await;
    let table = r#"
        # {0}, a number
        /{0} = 7
        ! {0}: must be a text, not a number
        # {0}, empty
        /{0} = ""
        ! {0}: must not be empty"#;
    each(
        &play,
        "machine // table // id // status // version // owner",
        table,
    )
    .await;
    let table = r#"
        # {0}, an object
        /terminal gone
        /transitions gone
        /steps gone
        /cancel gone
        /refund gone
        /{0} = {"a": 1}
        ! {0}: must be a list, not an object"#;
    each(
        &play,
        "status_types // terminal // transitions // steps",
        table,
    )
    .await;
    let objects = "
        transitions/1 | transitions[1] // steps/0 | steps[0] // cancel | cancel // refund | refund";
    let table = "
        # {1}, a boolean
        /{0} = true
        ! {1}: must be an object, not a boolean";
    each(&play, objects, table).await;
    let texts = "
        terminal/0 | terminal[0] // transitions/0/from/0 | transitions[0].from[0]
        transitions/0/to | transitions[0].to // transitions/0/when | transitions[0].when
        steps/0/step_key | steps[0].step_key // cancel/flag | cancel.flag
        steps/0/successful_state/worker | steps[0].successful_state.worker";
    let table = "
        # {1}, a list
        /{0} = []
        ! {1}: must be a text, not a list";
    each(&play, texts, table).await;
    let table = r#"
        # a status, a list
        /status_types/5 = []
        /status_types/- = "cancelled"
        ! status_types[5]: must be a text, not a list
        # marked, an object
        /refund/marked = {}
        ! refund.marked: must be a text, a number or a boolean, not an object
        # undecided, an object
        /refund/undecided = {}
        ! refund.undecided: must be a text, a number or a boolean, not an object
        # the success, a list
        /steps/0/successful_state = ["done"]
        ! steps[0].successful_state: must be a status, or one per requester in an object, not a list
        # the success of nobody
        /steps/0/successful_state = {}
        ! steps[0].successful_state: names no requester ("*": any)"#;
    cases(&play, table).await;
}

#[tokio::test]
async fn names_and_statuses_have_a_length() {
    let play = open().await;
    let table = r#"
        # the longest machine
        /machine = "LONGEST"
        # the longest status
        /status_types/- = "LONGEST"
        # a longer machine
        /machine = "LONGESTß"
        ! machine: is longer than 100 characters
        # a longer status
        /status_types/- = "LONGESTß"
        ! status_types[6]: is longer than 100 characters
        # an empty status
        /status_types/- = ""
        ! status_types[6]: must not be empty
        # a longer step
        /steps/0/step_key = "LONGESTß"
        ! steps[0].step_key: is longer than 100 characters
        # a longer requester
        /steps/0/successful_state/LONGESTß = "done"
        ! steps[0].successful_state: requester "LONGEST…" is longer than 100 characters
        # an empty requester
        /steps/0/successful_state/ = "done"
        ! steps[0].successful_state: a requester must not be an empty text"#;
    cases(&play, &table.replace("LONGEST", &"ß".repeat(100))).await;
}

#[tokio::test]
async fn a_lease_is_a_positive_interval() {
    let play = open().await;
    let leases = r#"
        "soon" | must be an interval as text, such as "30 seconds" // "0 seconds" | must be positive, not zero
        "-1 second" | must be positive, not negative // "2000 years" | is longer than 1000 years
        30 | must be a text, not a number"#;
    let table = "
        # a lease of {0}
        /steps/0/lease = {0}
        ! steps[0].lease: {1}";
    each(&play, leases, table).await;
}

#[tokio::test]
async fn every_line_is_one_line_and_shows_no_more_than_a_hundred_characters_of_a_name() {
    let play = open().await;
    let table = r#"
        # a name of two lines that is too long
        /cancel/flag = "a\nbLONG"
        ! cancel.flag: public.job has no column "a bSHOWN…""#;
    let table = table.replace("LONG", &"c".repeat(5000));
    cases(&play, &table.replace("SHOWN", &"c".repeat(97))).await;
}

#[tokio::test]
async fn a_definition_that_breaks_ten_things_reports_ten() {
    let play = open().await;
    let table = r#"
        # ten
        /oops = 1
        /version = "customer"
        /status_types/- = "new"
        /transitions/0/when = "m > 0"
        /transitions/1/to = "nowhere"
        /steps/0/claim_state/worker = ["running", "running"]
        /steps/0/lease = "never"
        /cancel/flag = "nope"
        /refund/undecided = "returned"
        /refund/balance = "customer"
        ! unknown member "oops"; known: machine, table, id, status, version, owner, module, history, status_types, terminal, transitions, steps, cancel, refund
        ! status_types[6]: "new" is there twice
        ! steps[0].lease: must be an interval as text, such as "30 seconds"
        ! transitions[1].to: "nowhere" is not in status_types
        ! steps[0].claim_state.worker: claim_into and revert_to are both "running" (rule 3)
        ! version: column "customer" is of type text; it must be bigint
        ! cancel.flag: public.job has no column "nope"
        ! transitions[0].when: column "m" does not exist
        ! refund.undecided: is the same value as marked, "returned"
        ! refund.balance: column "customer" is the column of refund.wallet_id already"#;
    cases(&play, table).await;
    // Nothing was stored, and the order is the same every time.
    assert_eq!(play.show("select count(*) from once.machine").await, "0");
    cases(&play, table).await;
}

/// As the practice spells it that machines come from.
#[tokio::test]
async fn the_practices_own_step_is_taken_verbatim() {
    let play = Playground::open().await;
    play.show("create table bill (id bigint primary key, status text not null); insert into bill values (1, 'approved')")
        .await;
    let step = r#"{"step_id": 20, "step_key": "close", "status": "approved",
        "successful_claim_state": {"admin": ["closing", "approved"]},
        "successful_state": {"admin": "closed"}, "action": {"admin": "CloseBillingActionUseCase"}}"#;
    let definition = format!(
        r#"{{"machine": "bill", "table": "bill", "id": "id", "status": "status",
            "status_types": ["approved", "closing", "closed"], "terminal": ["closed"], "steps": [{step}]}}"#
    );
    play.show(&format!(
        "select once.machine_define($def${definition}$def$)"
    ))
    .await;
    let kept = "select step ->> 'step_id', step ->> 'action', step ->> 'claim_state'
        from json_array_elements(once.machine_get('bill') -> 'steps') step";
    let action = r#"{"admin":"CloseBillingActionUseCase"}"#;
    let claims = r#"{"admin":["closing","approved"]}"#;
    assert_eq!(play.show(kept).await, format!("20|{action}|{claims}"));
    let claim = "select outcome, status from once.action_claim('bill', '1', 'close', 'admin')";
    assert_eq!(play.show(claim).await, "claimed|closing");
}

#[tokio::test]
async fn a_bare_pair_and_a_bare_status_mean_any_requester() {
    let play = open().await;
    let mut bare = right();
    bare["steps"][0]["claim_state"] = json!(["running", "ready"]);
    bare["steps"][0]["successful_state"] = json!("done");
    let stored = play.show(&define(&bare)).await;
    let stored: Value = serde_json::from_str(&stored).unwrap();
    let step = &stored["steps"][0];
    assert_eq!(step["claim_state"], json!({"*": ["running", "ready"]}));
    assert_eq!(step["successful_state"], json!({"*": "done"}));
}

#[tokio::test]
async fn a_claim_state_is_given_by_one_of_its_names() {
    let play = open().await;
    let table = r#"
        # by both
        /steps/0/successful_claim_state = {"worker": ["running", "ready"]}
        ! steps[0].successful_claim_state: is another name of claim_state: give one of them"#;
    cases(&play, table).await;
}
