//! A definition that is right, and ways to break it: every other file of definitions begins from here. Each
//! case breaks one thing and gets one DETAIL line, word for word.
//!
//! In this file: the members themselves (missing, unknown, of the wrong type, too long), and everything
//! wrong at once.

use crate::playground::Playground;
use serde_json::{Value, json};

pub const TABLES: &str = "
create table job (
    id bigint primary key, customer text not null, status text not null, version bigint not null,
    cancelling boolean not null, n int, note text);
create table item (
    id bigint primary key, job_id bigint not null, settled text, points bigint not null, state text);
create table wallet (customer text primary key, points bigint not null);";

/// A machine that has one of everything.
pub fn right() -> Value {
    json!({
        "machine": "m", "table": "job", "id": "id", "status": "status", "version": "version",
        "status_types": ["new", "ready", "running", "done", "failed", "cancelled"],
        "terminal": ["done", "cancelled"],
        "transitions": [
            {"from": ["new"], "to": "ready", "when": "n > 0"},
            {"from": ["failed"], "to": "new"}
        ],
        "steps": [{
            "step_key": "run", "status": "ready", "claim_state": {"worker": ["running", "ready"]},
            "successful_state": {"worker": "done"}, "lease": "30 seconds", "action": {"handler": "h"}
        }],
        "cancel": {"flag": "cancelling", "to": "cancelled"},
        "refund": {
            "items": "item", "item_id": "id", "subject": "job_id", "marker": "settled", "marked": "returned",
            "when": "state = 'ok'", "amount": "points", "wallet": "wallet", "wallet_id": "customer",
            "account": "customer", "balance": "points"
        }
    })
}

/// The call that registers a definition.
pub fn define(definition: &Value) -> String {
    format!("select once.machine_define($def${definition}$def$)")
}

/// A database with the tables.
pub async fn open() -> Playground {
    let play = Playground::open().await;
    play.show(TABLES).await;
    play
}

/// The DETAIL lines of a refused definition.
pub async fn faults(play: &Playground, definition: &Value) -> Vec<String> {
    let refusal = play.refused(&define(definition)).await;
    assert_eq!(refusal.code, "ON003", "{refusal:?}");
    assert!(!refusal.hint.is_empty());
    let lines: Vec<_> = refusal.detail.lines().map(str::to_owned).collect();
    let (s, count) = (if lines.len() == 1 { "" } else { "s" }, lines.len());
    let whose = match definition["machine"].as_str() {
        Some(name) if !name.is_empty() && name.chars().count() <= 100 => {
            format!("the definition of machine \"{name}\"")
        }
        _ => "the definition of a machine".to_owned(),
    };
    assert_eq!(refusal.message, format!("{whose} has {count} fault{s}"));
    lines
}

/// The right definition with one change has exactly one fault.
pub async fn only(play: &Playground, change: impl FnOnce(&mut Value), fault: &str) {
    let mut definition = right();
    change(&mut definition);
    assert_eq!(faults(play, &definition).await, [fault]);
}

/// As `only`, over tables that were changed before; they are as they were afterwards.
pub async fn only_after(
    play: &Playground,
    setup: &str,
    change: impl FnOnce(&mut Value),
    fault: &str,
) {
    told(play, fault).after(setup).of(change).await;
}

/// The same in a chain, for what is longer: `told(&play, fault).after(setup).of(change).await`.
pub fn told<'a>(play: &'a Playground, fault: &'a str) -> Told<'a> {
    let setup = "";
    Told { play, fault, setup }
}

/// See [`told`].
pub struct Told<'a> {
    play: &'a Playground,
    fault: &'a str,
    setup: &'a str,
}

impl<'a> Told<'a> {
    pub fn after(self, setup: &'a str) -> Told<'a> {
        Told { setup, ..self }
    }

    pub async fn of(self, change: impl FnOnce(&mut Value)) {
        if self.setup.is_empty() {
            return only(self.play, change, self.fault).await;
        }
        self.play.show(&format!("begin; {}", self.setup)).await;
        only(self.play, change, self.fault).await;
        self.play.show("rollback").await;
    }
}

/// The definition with one change is right over tables that were changed before.
pub async fn fits_after(play: &Playground, setup: &str, change: impl FnOnce(&mut Value)) {
    let mut definition = right();
    change(&mut definition);
    play.show(&format!("begin; {setup}")).await;
    play.show(&define(&definition)).await;
    play.show("rollback").await;
}

/// Takes a member away.
pub fn without(object: &mut Value, name: &str) {
    object.as_object_mut().unwrap().remove(name).unwrap();
}

#[tokio::test]
async fn the_smallest_definition_is_accepted_and_null_members_count_as_left_out() {
    let play = open().await;
    let smallest = json!({"machine": "s", "table": "job", "id": "id", "status": "status", "status_types": ["a"]});
    play.show(&define(&smallest)).await;
    let mut nulls = smallest;
    for name in [
        "version",
        "owner",
        "terminal",
        "transitions",
        "steps",
        "cancel",
        "refund",
    ] {
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
    for name in ["machine", "table", "id", "status", "status_types"] {
        only(&play, |d| without(d, name), &format!("{name}: is missing")).await;
        told(&play, &format!("{name}: is missing"))
            .of(|d| d[name] = Value::Null)
            .await;
    }
    for name in ["from", "to"] {
        let fault = format!("transitions[0].{name}: is missing");
        only(&play, |d| without(&mut d["transitions"][0], name), &fault).await;
    }
    for name in ["step_key", "status", "successful_state"] {
        let fault = format!("steps[0].{name}: is missing");
        only(&play, |d| without(&mut d["steps"][0], name), &fault).await;
    }
    for name in ["flag", "to"] {
        let fault = format!("cancel.{name}: is missing");
        only(&play, |d| without(&mut d["cancel"], name), &fault).await;
    }
    for name in [
        "items",
        "item_id",
        "subject",
        "marker",
        "marked",
        "amount",
        "wallet",
        "wallet_id",
        "account",
        "balance",
    ] {
        let fault = format!("refund.{name}: is missing");
        only(&play, |d| without(&mut d["refund"], name), &fault).await;
    }
}

#[tokio::test]
async fn an_unknown_member_is_one_fault_at_every_level() {
    let play = open().await;
    let unknown =
        |path: &str, known: &str| format!("{path}unknown member \"vesion\"; known: {known}");
    let add = |object: &mut Value| object["vesion"] = json!(1);
    let known = "machine, table, id, status, version, owner, module, history, status_types, terminal, transitions, steps, cancel, refund";
    only(&play, add, &unknown("", known)).await;
    let known = "from, to, when, emit";
    told(&play, &unknown("transitions[1]: ", known))
        .of(|d| add(&mut d["transitions"][1]))
        .await;
    let known = "step_key, status, claim_state, successful_claim_state, successful_state, lease, emit, step_id, action";
    told(&play, &unknown("steps[0]: ", known))
        .of(|d| add(&mut d["steps"][0]))
        .await;
    told(&play, &unknown("cancel: ", "flag, to"))
        .of(|d| add(&mut d["cancel"]))
        .await;
    let known = "items, item_id, subject, marker, marked, undecided, when, amount, wallet, wallet_id, account, balance";
    told(&play, &unknown("refund: ", known))
        .of(|d| add(&mut d["refund"]))
        .await;
    // What is free stays free.
    let mut free = right();
    free["steps"][0]["action"] = json!({"vesion": [1, {"b": null}]});
    play.show(&define(&free)).await;
}

#[tokio::test]
async fn a_member_that_an_object_has_twice_is_one_fault_at_every_level() {
    let play = open().await;
    let written = right().to_string();
    for (once, twice, fault) in [
        (
            r#""id":"id","#,
            r#""id":"id","id":"nope","#,
            "id: is there twice",
        ),
        (
            r#""to":"ready""#,
            r#""to":"nope","t\u006f":"ready""#,
            "transitions[0].to: is there twice",
        ),
        (
            r#"{"worker":["running","ready"]}"#,
            r#"{"worker":7,"worker":["running","ready"]}"#,
            "steps[0].claim_state.worker: is there twice",
        ),
        (
            r#""action":{"handler":"h"}"#,
            r#""action":[{"handler":"h","handler":"h"}]"#,
            "steps[0].action[0].handler: is there twice",
        ),
    ] {
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
    for name in ["machine", "table", "id", "status", "version", "owner"] {
        told(&play, &format!("{name}: must be a text, not a number"))
            .of(|d| d[name] = json!(7))
            .await;
        told(&play, &format!("{name}: must not be empty"))
            .of(|d| d[name] = json!(""))
            .await;
    }
    for name in ["status_types", "terminal", "transitions", "steps"] {
        let mut bare = right();
        for member in ["terminal", "transitions", "steps", "cancel", "refund"] {
            without(&mut bare, member);
        }
        bare[name] = json!({"a": 1});
        let fault = format!("{name}: must be a list, not an object");
        assert_eq!(faults(&play, &bare).await, [fault]);
    }
    let object = "must be an object, not a boolean";
    told(&play, &format!("transitions[1]: {object}"))
        .of(|d| d["transitions"][1] = json!(true))
        .await;
    told(&play, &format!("steps[0]: {object}"))
        .of(|d| d["steps"][0] = json!(true))
        .await;
    told(&play, &format!("cancel: {object}"))
        .of(|d| d["cancel"] = json!(true))
        .await;
    told(&play, &format!("refund: {object}"))
        .of(|d| d["refund"] = json!(true))
        .await;
    let text = "must be a text, not a list";
    let cases: [(&str, &str); 8] = [
        ("/status_types/5", "status_types[5]"),
        ("/terminal/0", "terminal[0]"),
        ("/transitions/0/from/0", "transitions[0].from[0]"),
        ("/transitions/0/to", "transitions[0].to"),
        ("/transitions/0/when", "transitions[0].when"),
        ("/steps/0/step_key", "steps[0].step_key"),
        (
            "/steps/0/successful_state/worker",
            "steps[0].successful_state.worker",
        ),
        ("/cancel/flag", "cancel.flag"),
    ];
    for (pointer, path) in cases {
        let change = |d: &mut Value| {
            if pointer == "/status_types/5" {
                d["status_types"].as_array_mut().unwrap().push(json!([]));
                d["status_types"].as_array_mut().unwrap().swap(5, 6);
            } else {
                *d.pointer_mut(pointer).unwrap() = json!([]);
            }
        };
        only(&play, change, &format!("{path}: {text}")).await;
    }
    let scalar = "must be a text, a number or a boolean, not an object";
    told(&play, &format!("refund.marked: {scalar}"))
        .of(|d| d["refund"]["marked"] = json!({}))
        .await;
    told(&play, &format!("refund.undecided: {scalar}"))
        .of(|d| d["refund"]["undecided"] = json!({}))
        .await;
    let success = "steps[0].successful_state: must be a status, or an object of those by requester, not a list";
    told(&play, success)
        .of(|d| d["steps"][0]["successful_state"] = json!(["done"]))
        .await;
    let nobody = "steps[0].successful_state: names no requester (\"*\": any)";
    told(&play, nobody)
        .of(|d| d["steps"][0]["successful_state"] = json!({}))
        .await;
}

#[tokio::test]
async fn names_and_statuses_have_a_length() {
    let play = open().await;
    let (longest, longer) = ("ß".repeat(100), "ß".repeat(101));
    fits_after(&play, "", |d| d["machine"] = json!(longest)).await;
    fits_after(&play, "", |d| d["status_types"][4] = json!("failed")).await;
    let long = "is longer than 100 characters";
    told(&play, &format!("machine: {long}"))
        .of(|d| d["machine"] = json!(longer))
        .await;
    let push = |d: &mut Value, status: &str| {
        d["status_types"]
            .as_array_mut()
            .unwrap()
            .push(json!(status))
    };
    told(&play, &format!("status_types[6]: {long}"))
        .of(|d| push(d, &longer))
        .await;
    only(&play, |d| push(d, ""), "status_types[6]: must not be empty").await;
    fits_after(&play, "", |d| push(d, &longest)).await;
    told(&play, &format!("steps[0].step_key: {long}"))
        .of(|d| d["steps"][0]["step_key"] = json!(longer))
        .await;
    let requester =
        |d: &mut Value, name: &str| d["steps"][0]["successful_state"][name] = json!("done");
    let fault = format!(
        "steps[0].successful_state: requester \"{}…\" {long}",
        "ß".repeat(100)
    );
    only(&play, |d| requester(d, &longer), &fault).await;
    let fault = "steps[0].successful_state: a requester must not be an empty text";
    only(&play, |d| requester(d, ""), fault).await;
}

#[tokio::test]
async fn a_lease_is_a_positive_interval() {
    let play = open().await;
    for (lease, problem) in [
        (
            "soon",
            "must be an interval as text, such as \"30 seconds\"",
        ),
        ("0 seconds", "must be positive, not zero"),
        ("-1 second", "must be positive, not negative"),
        ("2000 years", "is longer than 1000 years"),
    ] {
        let fault = format!("steps[0].lease: {problem}");
        only(&play, |d| d["steps"][0]["lease"] = json!(lease), &fault).await;
    }
    told(&play, "steps[0].lease: must be a text, not a number")
        .of(|d| d["steps"][0]["lease"] = json!(30))
        .await;
}

#[tokio::test]
async fn every_line_is_one_line_and_shows_no_more_than_a_hundred_characters_of_a_name() {
    let play = open().await;
    only(
        &play,
        |d| d["cancel"]["flag"] = json!(format!("a\nb{}", "c".repeat(5000))),
        &format!(
            "cancel.flag: public.job has no column \"a b{}…\"",
            "c".repeat(97)
        ),
    )
    .await;
}

#[tokio::test]
async fn a_definition_that_breaks_ten_things_reports_ten() {
    let play = open().await;
    let mut d = right();
    d["oops"] = json!(1);
    d["version"] = json!("customer");
    d["status_types"].as_array_mut().unwrap().push(json!("new"));
    d["transitions"][0]["when"] = json!("m > 0");
    d["transitions"][1]["to"] = json!("nowhere");
    d["steps"][0]["claim_state"]["worker"] = json!(["running", "running"]);
    d["steps"][0]["lease"] = json!("never");
    d["cancel"]["flag"] = json!("nope");
    d["refund"]["undecided"] = json!("returned");
    d["refund"]["balance"] = json!("customer");
    let found = faults(&play, &d).await;
    assert_eq!(
        found,
        [
            "unknown member \"oops\"; known: machine, table, id, status, version, owner, module, history, status_types, terminal, transitions, steps, cancel, refund",
            "status_types[6]: \"new\" is there twice",
            "steps[0].lease: must be an interval as text, such as \"30 seconds\"",
            "transitions[1].to: \"nowhere\" is not in status_types",
            "steps[0].claim_state.worker: claim_into and revert_to are both \"running\" (rule 3)",
            "version: column \"customer\" is of type text; it must be bigint",
            "cancel.flag: public.job has no column \"nope\"",
            "transitions[0].when: column \"m\" does not exist",
            "refund.undecided: is the same value as marked, \"returned\"",
            "refund.balance: column \"customer\" is refund.wallet_id already",
        ]
    );
    // Nothing was stored, and the order is the same every time.
    assert_eq!(play.show("select count(*) from once.machine").await, "0");
    assert_eq!(faults(&play, &d).await, found);
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
    let twice = "steps[0].successful_claim_state: is another name of claim_state: give one of them";
    let change = |d: &mut Value| {
        d["steps"][0]["successful_claim_state"] = d["steps"][0]["claim_state"].clone();
    };
    only(&play, change, twice).await;
}
