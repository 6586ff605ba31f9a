//! `cancel_items` lists the items whose artifacts a worker deletes; `cancel_confirm` records that they are deleted.

use super::items::Items;
use super::record::TeardownCol;
use super::torn_row::{TeardownState, TornRow};
use crate::call::Call;
use crate::error::{Error, Result};
use crate::machine::id::{RowId, parameter_type};
use crate::machine::statement::{NO, READ};
use crate::machine::user_row::RowLock;
use crate::row::Rows;
use crate::spi::column;
use pgrx::pg_sys::{self, Datum};

const MOST_CLEANED: i32 = 100_000;

/// $1 the row's id, $2 the limit, $3 (only with `AFTER`) the key after which the list begins.
const LIST: &str = "
    SELECT i.{item_id}::pg_catalog.text, pg_catalog.row_to_json(i.*) FROM {items} AS i
     WHERE i.{subject} OPERATOR(pg_catalog.=) $1 AND {is_marked} {after}
     ORDER BY i.{item_id} LIMIT $2";

const AFTER: &str = "AND i.{item_id} OPERATOR(pg_catalog.>) $3";

/// `once.cancel_items`.
pub fn cancel_items(call: &Call) -> Result<Datum> {
    let torn = TornRow::of_call(call)?;
    let items = Items::of_machine(&torn.machine)?;
    let base = items.shape.item_id.base_type;
    let after = call
        .bytes(2)
        .map(|text| RowId::read(base, text, "after_id"));
    let after = after.transpose()?;
    let max = call.limit(3, "max", MOST_CLEANED)?;
    let (key, clause) = match after {
        None => ("list", String::new()),
        Some(_) => ("list after", items.fill(AFTER, &[])),
    };
    let types = [
        torn.machine.id_type(),
        pg_sys::INT8OID,
        parameter_type(base),
    ];
    let types = &types[..2 + usize::from(after.is_some())];
    let plan = torn.machine.plan(key, types, [NO, READ, NO], || {
        items.fill(LIST, &[("after", &clause)])
    })?;
    let mut args = vec![Some(torn.id.value), Some(Datum::from(i64::from(max)))];
    args.extend(after.map(|id| Some(id.value)));
    let rows = Rows::begin(call);
    // Reads the latest snapshot, because an older one can lack items. The caller deletes the artifacts of the listed
    // items, and then cancel_confirm records that all are deleted. The artifact of a missing item would stay.
    for row in plan.query_latest(&args)? {
        rows.push(&[column(&row, 0), column(&row, 1)]);
    }
    Ok(call.return_null())
}

/// `once.cancel_confirm`.
pub fn cancel_confirm(call: &Call) -> Result<Datum> {
    let torn = TornRow::of_call(call)?;
    Items::of_machine(&torn.machine)?;
    let pass = call.i64(2, "pass")?;
    if let TeardownState::Done(_) = torn.state(RowLock::Update)? {
        let last = torn.past_record()?.map_or(0, |t| t.i64(TeardownCol::Pass));
        return Ok(Datum::from(pass == last));
    }
    let mut teardown = torn.record()?;
    let last = teardown.i64(TeardownCol::Pass);
    if pass < 1 || pass > last {
        return Err(Error::bad_argument(
            "pass",
            format!(
                "is {pass}, but the last refund of {} was pass {last}",
                torn.named()
            ),
            "Give the pass that once.cancel_refund returned before the items were listed.",
        ));
    }
    if pass == last && teardown.i64(TeardownCol::ConfirmedPass) != last {
        teardown.put_i64(TeardownCol::ConfirmedPass, last);
        teardown.store()?;
    }
    Ok(Datum::from(pass == last))
}
