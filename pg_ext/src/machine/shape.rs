//! A definition fitted to its tables: every table and column that it names as the catalog has them now, or
//! a line for each that is gone or has become unusable.

use super::definition::{Definition, Refund};
use super::id;
use super::money::Digits;
use super::relation::{Column, Relation};
use super::sql::ident;
use pgrx::pg_sys::{self, Oid};

/// What the catalog says of everything that a definition names.
#[derive(Clone, PartialEq)]
pub struct Shape {
    pub table: Relation,
    pub id: Column,
    pub status: Column,
    pub version: Option<Column>,
    pub flag: Option<Column>,
    pub refund: Option<RefundShape>,
}

#[derive(Clone, PartialEq)]
pub struct RefundShape {
    pub items: Relation,
    pub item_id: Column,
    pub subject: Column,
    pub marker: Column,
    pub amount: Column,
    pub wallet: Relation,
    pub wallet_id: Column,
    pub balance: Column,
    /// Of the machine's table.
    pub account: Column,
}

impl Shape {
    /// The machine's table, its items' and their wallets', each with the columns that are named.
    pub fn tables(&self) -> impl Iterator<Item = (&Relation, Vec<&Column>)> {
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

/// Everything that the definition names over these tables, as the catalog has it; or a line for each that is gone.
pub fn fit(
    definition: &Definition,
    tables: [Option<Oid>; 3],
) -> std::result::Result<Shape, Vec<String>> {
    let mut missing = Vec::new();
    let shape = Fitting {
        definition,
        missing: &mut missing,
    }
    .shape(tables);
    shape.ok_or(missing)
}

struct Fitting<'a> {
    definition: &'a Definition,
    missing: &'a mut Vec<String>,
}

impl Fitting<'_> {
    fn shape(&mut self, [table, items, wallet]: [Option<Oid>; 3]) -> Option<Shape> {
        let d = self.definition;
        let table = self.table("table", table)?;
        let id = self.column(&table, "id", &d.id);
        let status = self.column(&table, "status", &d.status);
        let version = d
            .version
            .as_ref()
            .map(|c| self.column(&table, "version", c));
        let flag = d
            .cancel
            .as_ref()
            .map(|c| self.column(&table, "cancel.flag", &c.flag));
        let refund = d
            .refund
            .as_ref()
            .map(|r| self.refund(r, &table, items, wallet));
        self.typed("id", &id, id::is_usable);
        self.typed("version", &version.clone().flatten(), |t| {
            t == pg_sys::INT8OID
        });
        self.typed("cancel.flag", &flag.clone().flatten(), |t| {
            t == pg_sys::BOOLOID
        });
        if !self.missing.is_empty() {
            return None;
        }
        Some(Shape {
            id: id?,
            status: status?,
            version: present(version)?,
            flag: present(flag)?,
            refund: present(refund)?,
            table,
        })
    }

    fn refund(
        &mut self,
        r: &Refund,
        table: &Relation,
        items: Option<Oid>,
        wallet: Option<Oid>,
    ) -> Option<RefundShape> {
        let account = self.column(table, "refund.account", &r.account);
        let items = self.table("refund.items", items);
        let wallet = self.table("refund.wallet", wallet);
        let (items, wallet) = (items?, wallet?);
        let item_id = self.column(&items, "refund.item_id", &r.item_id);
        let subject = self.column(&items, "refund.subject", &r.subject);
        let marker = self.column(&items, "refund.marker", &r.marker);
        let amount = self.column(&items, "refund.amount", &r.amount);
        self.typed("refund.amount", &amount, is_money);
        let wallet_id = self.column(&wallet, "refund.wallet_id", &r.wallet_id);
        let balance = self.column(&wallet, "refund.balance", &r.balance);
        self.typed("refund.balance", &balance, is_money);
        self.holds(&balance, &amount);
        Some(RefundShape {
            item_id: item_id?,
            subject: subject?,
            marker: marker?,
            amount: amount?,
            wallet_id: wallet_id?,
            balance: balance?,
            account: account?,
            items,
            wallet,
        })
    }

    /// Types may have changed since the definition: a balance that rounds what is added to it loses money.
    fn holds(&mut self, balance: &Option<Column>, amount: &Option<Column>) {
        let digits = |column: &Column| Digits::of(column.base_type, column.modifier);
        if let (Some(balance), Some(amount)) = (balance, amount)
            && let (Some(to), Some(from)) = (digits(balance), digits(amount))
            && !to.hold(from)
        {
            self.missing.push(format!(
                "refund.balance: column {} cannot hold every amount of column {}",
                balance.name, amount.name
            ));
        }
    }

    /// A column that is there has a type that can be used.
    fn typed(&mut self, member: &str, column: &Option<Column>, usable: fn(Oid) -> bool) {
        if let Some(column) = column
            && !usable(column.base_type)
        {
            let problem = format!(
                "{member}: the type of column {} cannot be used",
                column.name
            );
            self.missing.push(problem);
        }
    }

    fn table(&mut self, member: &str, oid: Option<Oid>) -> Option<Relation> {
        let found = oid.and_then(Relation::of);
        if found.is_none() {
            self.missing.push(format!("{member}: the table is gone"));
        }
        found
    }

    fn column(&mut self, table: &Relation, member: &str, name: &str) -> Option<Column> {
        let found = table.column(name);
        if found.is_none() {
            self.missing.push(format!(
                "{member}: table {} has no column {}",
                table.name,
                ident(name)
            ));
        }
        found
    }
}

fn is_money(base: Oid) -> bool {
    matches!(
        base,
        pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID | pg_sys::NUMERICOID
    )
}

/// An optional member that is declared has to be there.
fn present<T>(member: Option<Option<T>>) -> Option<Option<T>> {
    match member {
        None => Some(None),
        Some(None) => None,
        Some(found) => Some(found),
    }
}
