//! Looks up in the present catalog the tables and columns that a definition names. The result is a [`MachineShape`], or
//! a list of faults if a table or column is gone or unusable.

use super::definition::{Definition, Refund};
use super::faults::Faults;
use super::id;
use super::money::Digits;
use super::relation::{Relation, UserColumn};
use super::sql::ident;
use pgrx::pg_sys::{self, Oid};
use std::result::Result;

/// The present tables and columns of a definition.
#[derive(Clone, PartialEq)]
pub struct MachineShape {
    pub table: Relation,
    pub id: UserColumn,
    pub status: UserColumn,
    pub version: Option<UserColumn>,
    pub flag: Option<UserColumn>,
    pub refund: Option<RefundShape>,
}

#[derive(Clone, PartialEq)]
pub struct RefundShape {
    pub items: Relation,
    pub item_id: UserColumn,
    pub subject: UserColumn,
    pub marker: UserColumn,
    pub amount: UserColumn,
    pub wallet: Relation,
    pub wallet_id: UserColumn,
    pub balance: UserColumn,
    /// Of the machine's table.
    pub account: UserColumn,
}

impl MachineShape {
    /// The tables of the machine, its items and the wallets, each with the columns that the definition names.
    pub fn tables(&self) -> impl Iterator<Item = (&Relation, Vec<&UserColumn>)> {
        let account = self.refund.iter().map(|r| &r.account);
        let own = [&self.id, &self.status].into_iter().chain(account);
        let own = own.chain(&self.version).chain(&self.flag).collect();
        let refund = self.refund.iter().flat_map(|r| {
            [
                (&r.items, vec![&r.item_id, &r.subject, &r.marker, &r.amount]),
                (&r.wallet, vec![&r.wallet_id, &r.balance]),
            ]
        });
        std::iter::once((&self.table, own)).chain(refund)
    }
}

/// Looks up all names. The error has a line for each member that does not fit; a missing table ends the look-up early.
pub fn look_up_names(
    definition: &Definition,
    tables: [Option<Oid>; 3],
) -> Result<MachineShape, Vec<String>> {
    let fitting = Fitting(Faults::default());
    let shape = fitting.shape(definition, tables);
    match (shape, fitting.0.into_lines()) {
        (Some(shape), lines) if lines.is_empty() => Ok(shape),
        (_, lines) => Err(lines),
    }
}

/// Whether a column may have this type (for a domain: its base type).
type Usable = fn(Oid) -> bool;

/// Collects the members that do not fit.
struct Fitting(Faults);

impl Fitting {
    fn shape(
        &self,
        d: &Definition,
        [table, items, wallet]: [Option<Oid>; 3],
    ) -> Option<MachineShape> {
        let table = self.table("table", table)?;
        let column = |member, name: &str, usable: Usable| self.column(&table, member, name, usable);
        let id = column("id", &d.id, id::is_usable);
        let status = column("status", &d.status, any);
        let version = d.version.as_ref();
        let version = version.map(|name| column("version", name, |t| t == pg_sys::INT8OID));
        let flag = d.cancel.as_ref();
        let flag = flag.map(|c| column("cancel.flag", &c.flag, |t| t == pg_sys::BOOLOID));
        let refund = d.refund.as_ref();
        let refund = refund.map(|r| self.refund(r, &table, items, wallet));
        Some(MachineShape {
            id: id?,
            status: status?,
            // A declared column that does not fit has been noted as a fault above.
            version: version.flatten(),
            flag: flag.flatten(),
            refund: refund.flatten(),
            table,
        })
    }

    fn refund(
        &self,
        r: &Refund,
        table: &Relation,
        items: Option<Oid>,
        wallet: Option<Oid>,
    ) -> Option<RefundShape> {
        let account = self.column(table, "refund.account", &r.account, any);
        let items = self.table("refund.items", items);
        let wallet = self.table("refund.wallet", wallet);
        let (items, wallet) = (items?, wallet?);
        let of_items =
            |member, name: &str, usable: Usable| self.column(&items, member, name, usable);
        let of_wallet =
            |member, name: &str, usable: Usable| self.column(&wallet, member, name, usable);
        let item_id = of_items("refund.item_id", &r.item_id, any);
        let subject = of_items("refund.subject", &r.subject, any);
        let marker = of_items("refund.marker", &r.marker, any);
        let amount = of_items("refund.amount", &r.amount, is_money);
        let wallet_id = of_wallet("refund.wallet_id", &r.wallet_id, any);
        let balance = of_wallet("refund.balance", &r.balance, is_money);
        let (amount, balance) = (amount?, balance?);
        self.holds(&balance, &amount);
        Some(RefundShape {
            item_id: item_id?,
            subject: subject?,
            marker: marker?,
            amount,
            wallet_id: wallet_id?,
            balance,
            account: account?,
            items,
            wallet,
        })
    }

    /// Compares the two columns by [`Digits::hold`]. Their types may have changed since the definition.
    fn holds(&self, balance: &UserColumn, amount: &UserColumn) {
        let digits = |column: &UserColumn| Digits::of_type(column.base_type, column.modifier);
        if let (Some(to), Some(from)) = (digits(balance), digits(amount))
            && !to.hold(from)
        {
            let (balance, amount) = (&balance.name, &amount.name);
            let problem = format!("column {balance} cannot hold every amount of column {amount}");
            self.0.add("refund.balance", problem);
        }
    }

    fn table(&self, member: &str, oid: Option<Oid>) -> Option<Relation> {
        let found = oid.and_then(Relation::of);
        if found.is_none() {
            self.0.add(member, "the table is gone");
        }
        found
    }

    fn column(&self, table: &Relation, path: &str, name: &str, fits: Usable) -> Option<UserColumn> {
        let found = table.column(name);
        let problem = match &found {
            Some(column) if fits(column.base_type) => return found,
            Some(column) => format!("the type of column {} cannot be used", column.name),
            None => format!("table {} has no column {}", table.name, ident(name)),
        };
        self.0.add(path, problem);
        None
    }
}

fn any(_base: Oid) -> bool {
    true
}

fn is_money(base: Oid) -> bool {
    Digits::of_type(base, -1).is_some()
}
