//! `cancel_refund`: marks undecided items and credits the wallet, in one statement.
//!
//! The statement runs under the lock of the user's row. So an item is either undecided and not paid back, or marked and
//! paid back once. Lock order: row, items by key, wallet.
//!
//! Invariant: the marked items are exactly the locked items, and the sum of their amounts is credited; otherwise
//! nothing is written.
//!
//! The statement first locks the items, then updates them. With `max_items` the UPDATE joins the locked items. Without
//! `max_items` it repeats the condition that selected them, because this is cheaper than the join.

use super::items::{Items, WhichItems};
use super::numeric;
use super::record::{Teardown, TeardownCol, note_refund};
use super::torn_row::{TeardownState, TornRow};
use crate::call::{Call, shown, varlena};
use crate::error::{Error, Kind, Result};
use crate::machine::permit::{self, Doing};
use crate::machine::statement::{READ, WRITE};
use crate::machine::user_row::RowLock;
use crate::row::Shape;
use crate::spi::column;
use crate::table::{Snapshot, above_read_committed};
use pgrx::pg_sys::{self, Datum};

/// $1 the row's id, $2 the limit of items. The items are locked in key order. The condition of the UPDATE reads the
/// number of locked items, which is known only after the last lock. So the first write comes after the last lock. An
/// item that was decided during the wait for its lock is left out; an item that was changed counts with its new amount.
const REFUND: &str = "
    WITH due AS MATERIALIZED (
        SELECT i.{item_id} AS \"once$key\",
               {pay} AS \"once$pay\"
          FROM {items} AS i
         WHERE i.{subject} OPERATOR(pg_catalog.=) $1 AND {is_undecided}
         ORDER BY i.{item_id} {limit} FOR NO KEY UPDATE OF i),
    total AS MATERIALIZED (
        SELECT pg_catalog.count(*) AS items,
               COALESCE(pg_catalog.sum(\"once$pay\"), 0)::pg_catalog.\"numeric\" AS amount,
               pg_catalog.min(\"once$key\"::pg_catalog.text) FILTER (WHERE \"once$pay\" IS NULL) AS bad_item
          FROM due),
    marked AS (
        UPDATE {items} AS i SET {marker} = {marked} {from_due}
         WHERE (SELECT total.items FROM total) OPERATOR(pg_catalog.>) 0::pg_catalog.int8 AND {which}
        RETURNING {pay} AS \"once$pay\",
                  ({is_marked} AND i.{subject} OPERATOR(pg_catalog.=) $1) AS \"once$done\"),
    done AS MATERIALIZED (
        SELECT pg_catalog.count(*) AS items,
               pg_catalog.count(*) FILTER (WHERE \"once$done\") AS good_items,
               COALESCE(pg_catalog.sum(\"once$pay\"), 0)::pg_catalog.\"numeric\" AS amount
          FROM marked),
    paid AS (
        UPDATE {wallet} AS w
           SET {balance} = w.{balance}::pg_catalog.\"numeric\" OPERATOR(pg_catalog.+) total.amount
          FROM total, done, {table} AS t
         WHERE {id} OPERATOR(pg_catalog.=) $1 AND w.{wallet_id} OPERATOR(pg_catalog.=) t.{account}
           AND total.bad_item IS NULL
           AND done.items OPERATOR(pg_catalog.=) total.items
           AND done.good_items OPERATOR(pg_catalog.=) total.items
           AND done.amount OPERATOR(pg_catalog.=) total.amount
           AND total.amount OPERATOR(pg_catalog.>) 0::pg_catalog.\"numeric\"
        RETURNING w.{wallet_id}::pg_catalog.text AS wallet,
                  (w.{balance}::pg_catalog.\"numeric\" OPERATOR(pg_catalog.<) 'Infinity'::pg_catalog.\"numeric\"
                   AND w.{balance}::pg_catalog.\"numeric\" OPERATOR(pg_catalog.>) '-Infinity'::pg_catalog.\"numeric\")
                   IS NOT TRUE AS broke)
    SELECT total.items, total.amount, total.bad_item, paid.wallet, paid.broke,
           total.amount OPERATOR(pg_catalog.>) 0::pg_catalog.\"numeric\",
           done.items, done.good_items, done.amount OPERATOR(pg_catalog.=) total.amount
      FROM total CROSS JOIN done LEFT JOIN paid ON true";

/// The amount that an item gives back; NULL if it is invalid.
const PAY: &str = "
    CASE WHEN {when} THEN CASE WHEN {payable} THEN i.{amount}::{number} END ELSE 0::{number} END";

/// The values of `{limit}`, `{from_due}` and `{which}`. SOME marks the items whose keys are in the CTE `due`. The
/// items table and a table that inherits from it can each have an item with the same key. The two items may belong to
/// different rows. So SOME compares the subject, too.
const ALL: [(&str, &str); 3] = [
    ("limit", ""),
    ("from_due", ""),
    (
        "which",
        "i.{subject} OPERATOR(pg_catalog.=) $1 AND {is_undecided}",
    ),
];
const SOME: [(&str, &str); 3] = [
    ("limit", "LIMIT $2"),
    ("from_due", "FROM due"),
    (
        "which",
        "i.{item_id} OPERATOR(pg_catalog.=) due.\"once$key\"
           AND (i.{subject} OPERATOR(pg_catalog.=) $1) IS TRUE AND ({is_undecided}) IS TRUE",
    ),
];

/// The values of `{number}` and `{payable}`: whole numbers are summed as int8.
const WHOLE: (&str, &str) = (
    "pg_catalog.int8",
    "i.{amount}::pg_catalog.int8 OPERATOR(pg_catalog.>=) 0::pg_catalog.int8",
);
/// `< Infinity` also excludes NaN, which is greater than infinity.
const NUMERIC: (&str, &str) = (
    "pg_catalog.\"numeric\"",
    "i.{amount}::pg_catalog.\"numeric\" OPERATOR(pg_catalog.>=) 0::pg_catalog.\"numeric\"
     AND i.{amount}::pg_catalog.\"numeric\" OPERATOR(pg_catalog.<) 'Infinity'::pg_catalog.\"numeric\"",
);

static SHAPE: Shape = Shape::new(&[
    (c"items", pg_sys::INT8OID),
    (c"amount", pg_sys::NUMERICOID),
    (c"items_total", pg_sys::INT8OID),
    (c"amount_total", pg_sys::NUMERICOID),
    (c"remaining", pg_sys::BOOLOID),
    (c"pass", pg_sys::INT8OID),
]);

/// `once.cancel_refund`.
pub fn cancel_refund(call: &Call) -> Result<Datum> {
    let torn = TornRow::of_call(call)?;
    let items = Items::of_machine(&torn.machine)?;
    let max = match call.datum(2) {
        None => None,
        Some(_) => Some(call.limit(2, "max_items", i32::MAX)?),
    };
    if let TeardownState::Done(_) = torn.state(RowLock::Update)? {
        let past = torn.past_record()?;
        return Ok(answer(0, numeric::zero(), past.as_ref(), false));
    }
    let paid = mark_and_credit(&torn, &items, max)?;
    let mut teardown = torn.record()?;
    let pass = teardown.i64(TeardownCol::Pass);
    let changed = paid.items > 0 || pass == 0;
    if changed {
        teardown.put_i64(TeardownCol::Pass, pass + 1);
        teardown.put_i64(
            TeardownCol::ItemsTotal,
            teardown.i64(TeardownCol::ItemsTotal) + paid.items,
        );
        let total = numeric::sum(teardown.amount_total(), paid.amount);
        teardown.put(TeardownCol::AmountTotal, Some(total));
        teardown.store()?;
    }
    if paid.items > 0 {
        note_refund(
            &torn.machine,
            &torn.id,
            pass + 1,
            paid.items,
            paid.amount,
            paid.wallet,
        )?;
    }
    // Without a limit the statement has marked all items that it saw.
    let took_all = max.is_none()
        && paid.items > 0
        && !above_read_committed()
        && !items.shape.items.has_policies();
    let left = match took_all {
        true => None,
        false => items.some(&torn.id, WhichItems::Undecided)?,
    };
    if let Some(item) = left
        && paid.items == 0
    {
        if items.is_kept_back(&torn.id, item)? {
            return Err(torn.kept_back());
        }
        if above_read_committed() {
            // The item is newer than this transaction's snapshot.
            return Err(Error::retry_transaction(format!(
                "the items of {}",
                torn.named()
            )));
        }
    }
    Ok(answer(
        paid.items,
        paid.amount,
        Some(&teardown),
        left.is_some(),
    ))
}

struct MarkedAndCredited {
    items: i64,
    amount: Datum,
    wallet: Option<Datum>,
}

fn mark_and_credit(torn: &TornRow, items: &Items, max: Option<i32>) -> Result<MarkedAndCredited> {
    let machine = &torn.machine;
    let types = [machine.id_type(), pg_sys::INT8OID];
    // Locks the partitions, too. The statement reads a partition before it updates the partition. By itself it would
    // take a weak lock first and upgrade this lock later, which can deadlock with another session's upgrade.
    for table in [&items.shape.items, &items.shape.wallet] {
        table.lock_with_all_below(pg_sys::RowExclusiveLock);
    }
    let (key, parts) = match max {
        None => ("refund", ALL),
        Some(_) => ("refund some", SOME),
    };
    let plan = machine.plan(key, &types, [READ, WRITE, WRITE], || {
        let (number, payable) = match items.shape.amount.base_type {
            pg_sys::NUMERICOID => NUMERIC,
            _ => WHOLE,
        };
        let mut statement = REFUND.replace("{pay}", &PAY.replace("{payable}", payable));
        for (part, text) in parts {
            statement = statement.replace(&format!("{{{part}}}"), text);
        }
        items.fill(&statement, &[("number", number)])
    })?;
    let permit = permit::grant(machine.name(), [torn.id.text.as_slice()], Doing::Refund);
    let max = max.map(|n| Datum::from(i64::from(n)));
    let rows = plan.query(&[Some(torn.id.value), max])?;
    drop(permit);
    let row = machine
        .one(&rows)?
        .ok_or_else(|| Error::internal("a refund without a result"))?;
    let number = |i: usize| column(row, i).map_or(0, |d| d.value() as i64);
    if let Some(item) = column(row, 2) {
        return Err(Error::new(
            Kind::BadArgument,
            format!(
                "item \"{}\" of {} has an amount that cannot be paid back",
                shown(varlena(item)),
                torn.named()
            ),
        )
        .hint("The amount of an item that matches the definition's when must be a number of 0 or more. Nothing was marked."));
    }
    let is_good = number(7) == number(6);
    ensure_same(torn, number(6) - number(0), is_good, number(8) != 0)?;
    let wallet = column(row, 3);
    if number(5) != 0 && wallet.is_none() {
        return Err(uncredited(torn, items)?);
    }
    if number(4) != 0 {
        return Err(Error::new(
            Kind::BadArgument,
            format!("the wallet of {} has no finite balance", torn.named()),
        )
        .hint("Set its balance to a number. Nothing was marked."));
    }
    Ok(MarkedAndCredited {
        items: number(0),
        amount: column(row, 1).unwrap_or_else(numeric::zero),
        wallet,
    })
}

/// The error for a refund that credited no wallet.
fn uncredited(torn: &TornRow, items: &Items) -> Result<Error> {
    let has_wallet = |snapshot| items.has_wallet(&torn.id, &snapshot);
    if !has_wallet(Snapshot::latest())? {
        return Ok(Error::new(
            Kind::MissingWallet,
            format!("{} names no existing wallet", torn.named()),
        )
        .hint(format!(
            "Check its column {} and table {}. Nothing was marked.",
            items.shape.account.name, items.shape.wallet.name
        )));
    }
    // The wallet is newer than this transaction's snapshot.
    if above_read_committed() && !has_wallet(Snapshot::now())? {
        return Ok(Error::retry_transaction(format!(
            "the wallet of {}",
            torn.named()
        )));
    }
    Ok(torn.illegal(
        "has a wallet that could not be credited",
        "A trigger or a policy of the wallet's table suppresses the update, or a trigger of the items wrote to the wallet. \
         If the wallet changed just now, call again. Nothing was marked.",
    ))
}

/// Compares the marked items with the locked items. `more`: how many more were marked than locked. `is_good`: all
/// marked items have the marker and still belong to the row.
fn ensure_same(torn: &TornRow, more: i64, is_good: bool, sum_is_same: bool) -> Result<()> {
    match more {
        1.. => Err(Error::new(
            Kind::InvalidDefinition,
            format!("{} has items with the same key", torn.named()),
        )
        .hint("Make the keys unique, also over tables that inherit from the items table, or call cancel_refund without max_items. Nothing was marked.")),
        0 if is_good && sum_is_same => Ok(()),
        0 if is_good => Err(torn.illegal(
            "has items whose amounts change with the marker",
            "A trigger or a generated column of the items table changes the amount with the marker. Nothing was marked.",
        )),
        _ => Err(torn.kept_back()),
    }
}

impl TornRow {
    fn kept_back(&self) -> Error {
        self.illegal(
            "has items that could not be marked",
            "A trigger or a policy of the items table suppresses updates. Nothing was marked.",
        )
    }
}

fn answer(items: i64, amount: Datum, teardown: Option<&Teardown>, remaining: bool) -> Datum {
    let total = |col| teardown.map_or(0, |t| t.i64(col));
    SHAPE.row(&[
        Some(Datum::from(items)),
        Some(amount),
        Some(Datum::from(total(TeardownCol::ItemsTotal))),
        Some(teardown.map_or_else(numeric::zero, Teardown::amount_total)),
        Some(Datum::from(remaining)),
        Some(Datum::from(total(TeardownCol::Pass))),
    ])
}
