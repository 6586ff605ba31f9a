//! What may stand in an item's amount and in a wallet, and what a refund does about the rest: the whole
//! call is undone, and once the row is repaired it goes through.

use crate::playground::Playground;
use crate::shapes::{PLAIN, Shape};

const WALLET: &str = r#""My Shop"."Wal""let""#;
const ITEM: &str = r#""My Shop"."It em""#;

/// A flagged row with good items of 1 and 2 beside the one in question.
async fn with_item(shape: &Shape, cost: &str, good: bool) -> Playground {
    let play = Playground::open().await;
    shape.build(&play).await;
    shape.item(&play, "1", "1", true).await;
    shape.item(&play, "2", cost, good).await;
    shape.item(&play, "3", "2", true).await;
    shape.flag(&play).await;
    play
}

/// Asserts that refund is refused with `code`, alone, in pages and in a transaction that goes on, and
/// that nothing has been marked, credited or recorded.
async fn undone(play: &Playground, shape: &Shape, code: &str) -> crate::playground::Refusal {
    let (marks, balance) = (shape.marks(play).await, play.show(BALANCES).await);
    let refund = shape.call("items", "cancel_refund", "");
    let refusal = play.refused(&refund).await;
    assert_eq!(refusal.code, code, "{refusal:?}");
    play.show("begin; savepoint s").await;
    assert_eq!(play.code(&refund).await, code);
    play.show("rollback to s").await;
    assert_eq!(
        play.code(&shape.call("items", "cancel_refund", ", 1000"))
            .await,
        code
    );
    play.show("rollback to s; commit").await;
    assert_eq!(shape.marks(play).await, marks);
    assert_eq!(play.show(BALANCES).await, balance);
    assert_eq!(play.show("select count(*) from once.refund").await, "0");
    let finish = shape.call("status", "cancel_finish", "");
    assert_eq!(play.code(&finish).await, "ON005");
    refusal
}

const BALANCES: &str =
    r#"select coalesce(string_agg("Id" || '=' || "Ba lance", ' '), '') from "My Shop"."Wal""let""#;

async fn repaired(play: &Playground, shape: &Shape, amount: &str) {
    let told = play
        .show(&shape.call("items, amount", "cancel_refund", ""))
        .await;
    assert_eq!(told, format!("3|{amount}"));
    shape.end(play).await;
}

#[tokio::test]
async fn an_amount_that_is_no_amount_undoes_the_whole_call() {
    for bad in ["null", "-0.01", "'NaN'", "'Infinity'", "'-Infinity'"] {
        let play = with_item(&PLAIN, bad, true).await;
        let refusal = undone(&play, &PLAIN, "22023").await;
        assert!(!refusal.hint.is_empty(), "{refusal:?}");
        // An undecided item's amount is still its owner's to change.
        play.show(&format!(r#"update {ITEM} set "Cost" = 4 where "Id" = 2"#))
            .await;
        repaired(&play, &PLAIN, "7").await;
        assert_eq!(PLAIN.balance(&play).await, "7");
    }
}

#[tokio::test]
async fn an_integer_amount_that_is_null_or_negative_undoes_the_whole_call() {
    let shape = Shape {
        amount: "integer",
        balance: "integer",
        ..PLAIN
    };
    for bad in ["null", "-1"] {
        let play = with_item(&shape, bad, true).await;
        undone(&play, &shape, "22023").await;
    }
}

#[tokio::test]
async fn the_amount_of_an_item_that_does_not_match_when_is_nobodys_business() {
    for bad in ["null", "-5", "'NaN'", "'Infinity'"] {
        let play = with_item(&PLAIN, bad, false).await;
        repaired(&play, &PLAIN, "3").await;
        assert_eq!(PLAIN.marks(&play).await, "it's back:3");
    }
}

#[tokio::test]
async fn a_missing_wallet_undoes_the_whole_call() {
    let play = with_item(&PLAIN, "4", true).await;
    play.show(&format!(r#"update {WALLET} set "Id" = 'other'"#))
        .await;
    let refusal = undone(&play, &PLAIN, "23503").await;
    assert!(!refusal.hint.is_empty(), "{refusal:?}");
    play.show(r#"update "My Shop"."Job" set "Who" = null"#)
        .await;
    undone(&play, &PLAIN, "23503").await;
    play.show(r#"update "My Shop"."Job" set "Who" = 'other'"#)
        .await;
    repaired(&play, &PLAIN, "7").await;
}

#[tokio::test]
async fn an_overflow_of_the_balance_undoes_the_whole_call() {
    for (kind, nearly) in [
        ("smallint", "32765"),
        ("integer", "2147483645"),
        ("bigint", "9223372036854775805"),
        ("numeric(6,0)", "999997"),
    ] {
        let shape = Shape {
            amount: match kind {
                "numeric(6,0)" => "numeric(2,0)",
                _ => "smallint",
            },
            balance: kind,
            ..PLAIN
        };
        let play = with_item(&shape, "4", true).await;
        let set = format!(r#"update {WALLET} set "Ba lance" = {nearly}"#);
        play.show(&set).await;
        undone(&play, &shape, "22003").await;
        play.show(&set.replace(nearly, "0")).await;
        repaired(&play, &shape, "7").await;
    }
}

#[tokio::test]
async fn amounts_whose_sum_is_larger_than_their_type_are_added_up_rightly() {
    let shape = Shape {
        amount: "bigint",
        balance: "numeric",
        ..PLAIN
    };
    let play = with_item(&shape, "9223372036854775807", true).await;
    repaired(&play, &shape, "9223372036854775810").await;
    assert_eq!(shape.balance(&play).await, "9223372036854775810");
}

#[tokio::test]
async fn a_check_or_a_trigger_of_the_wallet_undoes_the_whole_call() {
    let play = with_item(&PLAIN, "4", true).await;
    play.show(&format!(
        r#"alter table {WALLET} add constraint low check ("Ba lance" < 5)"#
    ))
    .await;
    let refusal = undone(&play, &PLAIN, "23514").await;
    assert!(refusal.message.contains("low"), "{refusal:?}");
    play.show(&format!(
        r#"alter table {WALLET} drop constraint low;
           create function no() returns trigger language plpgsql as $$
               begin raise exception 'closed for today' using errcode = 'P4711'; end $$;
           create trigger no before update on {WALLET} for each row execute function no()"#
    ))
    .await;
    let refusal = undone(&play, &PLAIN, "P4711").await;
    assert_eq!(refusal.message, "closed for today");
    play.show(&format!(r#"drop trigger no on {WALLET}"#)).await;
    repaired(&play, &PLAIN, "7").await;
}

/// What is marked has to be what was paid for.
#[tokio::test]
async fn a_trigger_that_changes_an_item_as_it_is_marked_undoes_the_whole_call() {
    for (guarded, change) in [
        (true, "new.points := 5"),
        (true, "new.state := 'failed'"),
        (true, "new.job_id := (select max(id) from batch_job)"),
        (false, "new.points := 5"),
        (false, "new.job_id := (select max(id) from batch_job)"),
        (false, "new.settled := null"),
    ] {
        let play = crate::shop::open().await;
        let job = crate::shop::job_of(&play, "w", &[10, 10, 10]).await;
        crate::shop::job_of(&play, "other", &[]).await;
        crate::shop::guard(&play, guarded).await;
        play.show(&job.call("outcome", "cancel_request", "")).await;
        play.show(&format!(
            "create function meddle() returns trigger language plpgsql as $$ begin
                if old.input like '%0' then {change}; end if; return new; end $$;
             update batch_item set input = case when id = (select min(id) from batch_item) then '0' else '1' end;
             create trigger zzz before update on batch_item for each row execute function meddle()"
        ))
        .await;
        let balance = play
            .show("select points from wallet where customer = 'w'")
            .await;
        for more in ["", ", 2"] {
            let refund = job.call("items", "cancel_refund", more);
            assert_eq!(play.code(&refund).await, "ON002", "{guarded} {change}");
        }
        let unpaid = "select points from wallet where customer = 'w'";
        assert_eq!(play.show(unpaid).await, balance);
        let unmarked = "select count(*) from batch_item where settled is not null";
        assert_eq!(play.show(unmarked).await, "0");
    }
}

#[tokio::test]
async fn a_trigger_of_the_wallet_that_keeps_the_credit_back_undoes_the_whole_call() {
    let play = with_item(&PLAIN, "4", true).await;
    play.show(&format!(
        "create function meddle() returns trigger language plpgsql as $$ begin return null; end $$;
         create trigger meddle before update on {WALLET} for each row execute function meddle()"
    ))
    .await;
    let refusal = undone(&play, &PLAIN, "ON002").await;
    assert!(refusal.hint.contains("wallet"), "{refusal:?}");
    assert_eq!(PLAIN.marks(&play).await, "open:3");
    play.show(&format!("drop trigger meddle on {WALLET}")).await;
    repaired(&play, &PLAIN, "7").await;
}

#[tokio::test]
async fn nothing_to_credit_leaves_the_wallet_alone() {
    for (cost, good) in [("4", false), ("0", true)] {
        let play = Playground::open().await;
        PLAIN.build(&play).await;
        PLAIN.item(&play, "1", cost, good).await;
        PLAIN.flag(&play).await;
        let version = format!(r#"select xmin, ctid, "Ba lance" from {WALLET}"#);
        let before = play.show(&version).await;
        let refund = PLAIN.call("items, amount, remaining, pass", "cancel_refund", "");
        assert_eq!(play.show(&refund).await, "1|0|f|1");
        assert_eq!(play.show(&refund).await, "0|0|f|1");
        assert_eq!(play.show(&version).await, before);
        // Not even locked: another session that holds it is in nobody's way.
        let holder = play.another().await;
        holder
            .show(&format!(
                r#"begin; update {WALLET} set "Ba lance" = "Ba lance""#
            ))
            .await;
        PLAIN.item(&play, "2", "7", false).await;
        play.show("set lock_timeout = '1ms'").await;
        assert_eq!(play.show(&refund).await, "1|0|f|2");
        holder.show("rollback").await;
        PLAIN.end(&play).await;
    }
}

#[tokio::test]
async fn a_row_without_items_is_refunded_nothing() {
    let play = Playground::open().await;
    PLAIN.build(&play).await;
    PLAIN.flag(&play).await;
    let all = "items, amount, items_total, amount_total, remaining, pass";
    let told = play.show(&PLAIN.call(all, "cancel_refund", "")).await;
    assert_eq!(told, "0|0|0|0|f|1");
    PLAIN.end(&play).await;
}

#[tokio::test]
async fn a_refund_waits_for_the_wallet_and_adds_to_what_it_finds_there() {
    let play = with_item(&PLAIN, "4", true).await;
    let holder = play.another().await;
    holder
        .show(&format!(r#"begin; update {WALLET} set "Ba lance" = 100"#))
        .await;
    let refund = PLAIN.call("amount", "cancel_refund", "");
    let waiting = crate::waiting::Waiting::begin(&play, play.another().await, &refund).await;
    holder.show("commit").await;
    assert_eq!(waiting.end().await.1.unwrap(), "7");
    assert_eq!(PLAIN.balance(&play).await, "107");
}

#[tokio::test]
async fn a_wallet_that_holds_no_number_undoes_the_whole_call() {
    for balance in ["'NaN'", "'Infinity'"] {
        let play = with_item(&PLAIN, "3", true).await;
        let set = format!(r#"update "My Shop"."Wal""let" set "Ba lance" = {balance}"#);
        play.show(&set).await;
        undone(&play, &PLAIN, "22023").await;
    }
}
