//! A machine as a backend uses it: its definition fitted to the tables as they are now, and the statements
//! that were prepared for it.
//!
//! A backend is one thread, so a `thread_local` is enough. The machine's row in once.machine is read again
//! after a relcache message about that table, which everything that changes a definition sends: another
//! revision means another definition. A relcache message about one of its tables
//! makes the columns be looked up again; the statements are thrown away only if those have changed.

use super::definition::{Definition, Refund};
use super::direct::Direct;
use super::id::{self, RowId};
use super::money::Digits;
use super::relation::{Column, Relation};
use super::sql::ident;
use crate::call::{Call, SCOPE_MAX, shown, utf8};
use crate::caller::Owner;
use crate::error::{Error, Kind, Result};
use crate::row;
use crate::spi::{Plan, Row, column};
use crate::table::{Name, ScanKey, Slot, Snapshot, Table};
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

pub const TABLE: Name = c"machine";
pub const BY_NAME: Name = c"machine_pkey";
/// Statements kept for one machine; more (many different patches) start anew.
const MOST_PLANS: usize = 300;

/// Columns of once.machine.
#[derive(Clone, Copy)]
pub enum Col {
    Machine = 1,
    Revision,
    Relation,
    Items,
    Wallet,
    Guarded,
    Owner,
    OwnerName,
    OwnerCluster,
    Definition,
}

thread_local! {
    static MACHINES: RefCell<HashMap<Vec<u8>, Rc<Machine>>> = RefCell::new(HashMap::new());
    /// Grows with every relcache message about a table of a known machine.
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    /// Grows with every relcache message about once.machine.
    static DEFINITIONS: Cell<u64> = const { Cell::new(0) };
    static DEFINITIONS_TABLE: Cell<Oid> = const { Cell::new(pg_sys::InvalidOid) };
    static WATCHED: RefCell<Vec<Oid>> = const { RefCell::new(Vec::new()) };
    static WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// A definition fitted to its tables.
pub struct Machine {
    pub definition: Definition,
    pub revision: i64,
    pub shape: Shape,
    /// See [`super::lock_of`].
    pub lock: u64,
    checked: Cell<u64>,
    /// The count of [`DEFINITIONS`] before its row was last read.
    read: Cell<Option<u64>>,
    /// Each call has to read it: what an owner's name stands for may change without a message.
    owned: Cell<bool>,
    plans: RefCell<HashMap<Vec<u8>, Rc<Plan>>>,
    /// Moves that go without a statement; None: those that cannot.
    directs: RefCell<HashMap<Vec<u8>, Option<Rc<Direct>>>>,
}

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

/// The row of once.machine that a name stands for.
pub struct Stored {
    slot: Slot,
}

impl Stored {
    /// The committed row; 42704 where there is none.
    pub fn of(machine: &[u8]) -> Result<Stored> {
        Stored::find(machine)?.ok_or_else(|| unknown(machine))
    }

    pub fn find(machine: &[u8]) -> Result<Option<Stored>> {
        let table = Table::to_read(TABLE)?;
        let key = &mut [ScanKey::text(1, row::text(machine))];
        let slot = table.find(BY_NAME, key, &Snapshot::latest())?;
        Ok(slot.map(|slot| Stored { slot }))
    }

    pub fn column(&self, col: Col) -> Option<Datum> {
        self.slot.column(col as usize)
    }

    pub fn revision(&self) -> i64 {
        self.column(Col::Revision).map_or(0, |d| d.value() as i64)
    }

    pub fn relation(&self, col: Col) -> Option<Oid> {
        self.column(col).map(|d| Oid::from(d.value() as u32))
    }

    pub fn guarded(&self) -> bool {
        self.column(Col::Guarded).is_some_and(|d| d.value() != 0)
    }

    pub fn owner(&self) -> Option<Owner> {
        Owner::stored(
            self.column(Col::Owner),
            self.column(Col::OwnerName),
            self.column(Col::OwnerCluster),
        )
    }

    /// The caller may use the machine.
    pub fn is_open(&self) -> bool {
        self.owner()
            .is_none_or(|owner| owner.ensure_member("machine", b"").is_ok())
    }

    pub fn definition(&self) -> Result<Definition> {
        let damaged = |e: String| {
            Error::new(
                Kind::InvalidDefinition,
                "a stored definition cannot be read",
            )
            .detail(e)
            .hint("If the library is older than the definition, load the newer one.")
        };
        let stored = self
            .column(Col::Definition)
            .ok_or_else(|| damaged(String::new()))?;
        let text = jsonb_text(stored);
        serde_json::from_slice(&utf8(&text)).map_err(|e| damaged(e.to_string()))
    }
}

/// Shows every machine's row, by name.
pub fn each_stored(each: &mut dyn FnMut(&Stored) -> Result<()>) -> Result<()> {
    let table = Table::to_read(TABLE)?;
    let mut names = Vec::new();
    let snapshot = Snapshot::latest();
    let mut scan = table.scan(BY_NAME, &mut [], &snapshot)?;
    while let Some(slot) = scan.advance() {
        if let Some(name) = slot.column(Col::Machine as usize) {
            names.push(crate::call::varlena(name).to_vec());
        }
    }
    drop(scan);
    for name in names {
        if let Some(stored) = Stored::find(&name)? {
            each(&stored)?;
        }
    }
    Ok(())
}

/// A jsonb as the server prints it.
pub fn jsonb_text(jsonb: Datum) -> Vec<u8> {
    // SAFETY: the output function of jsonb returns a C string.
    unsafe {
        pgrx::direct_function_call_as_datum(pg_sys::jsonb_out, &[Some(jsonb)])
            .map(|d| {
                std::ffi::CStr::from_ptr(d.cast_mut_ptr())
                    .to_bytes()
                    .to_vec()
            })
            .unwrap_or_default()
    }
}

pub fn unknown(machine: &[u8]) -> Error {
    Error::new(
        Kind::UndefinedObject,
        format!("machine \"{}\" does not exist", shown(machine)),
    )
    .hint("Register it with once.machine_define(definition).")
}

impl Machine {
    /// The machine that argument 0 names; refuses who is not a member of its owner.
    pub fn of(call: &Call) -> Result<Rc<Machine>> {
        Machine::named(call.text(0, "machine", SCOPE_MAX)?)
    }

    /// A machine by name; refuses who is not a member of its owner.
    pub fn named(name: &[u8]) -> Result<Rc<Machine>> {
        accept_changes();
        if let Some(machine) = known(name).filter(|m| m.is_current() && !m.owned.get()) {
            return Ok(machine);
        }
        let seen = watch_definitions()?;
        let stored = Stored::of(name)?;
        let owner = stored.owner();
        if let Some(owner) = owner {
            owner.ensure_member("machine", name)?;
        }
        let machine = Machine::fitted(name, &stored)?;
        machine.read.set(Some(seen));
        machine.owned.set(owner.is_some());
        Ok(machine)
    }

    /// No message about its definition or its tables has come since it was looked up.
    pub fn is_current(&self) -> bool {
        self.read.get() == Some(DEFINITIONS.get()) && self.checked.get() == CHANGES.get()
    }

    /// A machine by name, for what acts on behalf of its tables (guards, sweeps).
    pub fn for_tables(name: &[u8]) -> Result<Rc<Machine>> {
        Machine::fitted(name, &Stored::of(name)?)
    }

    /// The compiled machine of a stored row, from the cache where it still fits.
    pub fn fitted(name: &[u8], stored: &Stored) -> Result<Rc<Machine>> {
        if let Some(machine) = known(name)
            && machine.revision == stored.revision()
            && machine.still_fits()
        {
            return Ok(machine);
        }
        let changes = watch(stored);
        let definition = stored.definition()?;
        let machine = Rc::new(Machine {
            shape: fit(&definition, stored)?,
            lock: super::lock_of(&definition.machine),
            definition,
            revision: stored.revision(),
            checked: Cell::new(changes),
            read: Cell::new(None),
            owned: Cell::new(false),
            plans: RefCell::default(),
            directs: RefCell::default(),
        });
        MACHINES.with(|m| m.borrow_mut().insert(name.to_vec(), machine.clone()));
        Ok(machine)
    }

    fn still_fits(&self) -> bool {
        let changes = CHANGES.get();
        if self.checked.get() == changes {
            return true;
        }
        // A statement that takes a row as a parameter does not notice that its type has changed.
        self.plans.borrow_mut().clear();
        self.directs.borrow_mut().clear();
        let fits = fit_again(&self.definition, &self.shape).as_ref() == Some(&self.shape);
        if fits {
            self.checked.set(changes);
        }
        fits
    }

    pub fn name(&self) -> &str {
        &self.definition.machine
    }

    /// Argument `i` as a row's id.
    pub fn id(&self, call: &Call, i: usize) -> Result<RowId> {
        let text = call.bytes(i).ok_or_else(|| {
            Error::bad_argument("id", "must not be null", "Give the row's id as text.")
        })?;
        RowId::read(self.shape.id.base_type, text, "id")
    }

    pub fn id_type(&self) -> Oid {
        id::parameter_type(self.shape.id.base_type)
    }

    pub fn id_array_type(&self) -> Oid {
        // SAFETY: looks into the system cache.
        unsafe { pg_sys::get_array_type(self.id_type()) }
    }

    /// The members that cancel_* and refund need; 22023 where the machine does not declare them.
    pub fn refund(&self) -> Result<(&Refund, &RefundShape)> {
        match (&self.definition.refund, &self.shape.refund) {
            (Some(refund), Some(shape)) => Ok((refund, shape)),
            _ => Err(self.undeclared("refund")),
        }
    }

    pub fn undeclared(&self, member: &str) -> Error {
        Error::bad_argument(
            "machine",
            format!("\"{}\" declares no \"{member}\"", self.name()),
            format!("Add the member \"{member}\" to its definition and call machine_define."),
        )
    }

    /// 42501 for who may not update the row's status: what leases and teardowns note follows from that right.
    pub fn ensure_may_update(&self) -> Result<()> {
        let table = &self.shape.table;
        // SAFETY: both look into the system caches.
        let may = unsafe {
            let (user, update) = (pg_sys::GetUserId(), pg_sys::ACL_UPDATE as pg_sys::AclMode);
            let of_table = pg_sys::pg_class_aclcheck(table.oid, user, update);
            let number = self.shape.status.number;
            of_table == pg_sys::AclResult::ACLCHECK_OK
                || pg_sys::pg_attribute_aclcheck(table.oid, number, user, update)
                    == pg_sys::AclResult::ACLCHECK_OK
        };
        may.then_some(()).ok_or_else(|| {
            Error::new(
                Kind::NotYours,
                format!("permission denied for table {}", table.name),
            )
            .hint("GRANT UPDATE on it, or on its status column, to the caller.")
        })
    }

    /// How errors name a row.
    pub fn row_named(&self, id: &RowId) -> String {
        format!("row \"{}\" of machine \"{}\"", id.shown(), self.name())
    }

    /// How errors of a lost race name it.
    pub fn any_row(&self) -> String {
        format!("a row of machine \"{}\"", self.name())
    }

    /// An update of a row that is there and ours to update did nothing.
    pub fn kept_back(&self, id: &RowId) -> Error {
        Error::new(
            Kind::IllegalTransition,
            format!("the update of {} was kept back", self.row_named(id)),
        )
        .hint("A trigger, a rule or a policy of the table suppresses or changes it: let it leave this machine's moves alone.")
    }

    /// The one row that a statement by key may touch; ON003 where the key has become no key.
    pub fn one<'a>(&self, rows: &'a [Row]) -> Result<Option<&'a Row>> {
        match rows {
            [] => Ok(None),
            [row] => Ok(Some(row)),
            _ => Err(Error::new(
                Kind::InvalidDefinition,
                format!("machine \"{}\" no longer fits its tables", self.name()),
            )
            .detail("A key names more than one row: its unique index is gone.")
            .hint("Make the keys unique again; machine_check lists what changed.")),
        }
    }

    /// A kept statement; `key` tells it apart from the machine's others.
    pub fn plan(
        &self,
        key: impl AsRef<[u8]>,
        types: &[Oid],
        build: impl FnOnce() -> String,
    ) -> Result<Rc<Plan>> {
        self.plan_or(key, types, || Ok(build()))
    }

    /// The same for a statement that may be refused; what was not refused once is not asked again.
    pub fn plan_or(
        &self,
        key: impl AsRef<[u8]>,
        types: &[Oid],
        build: impl FnOnce() -> Result<String>,
    ) -> Result<Rc<Plan>> {
        let key = key.as_ref();
        if let Some(plan) = self.plans.borrow().get(key) {
            return Ok(plan.clone());
        }
        let plan = Rc::new(Plan::prepare(&build()?, types, self.any_row())?);
        let mut plans = self.plans.borrow_mut();
        if plans.len() >= MOST_PLANS {
            plans.clear();
        }
        plans.insert(key.to_vec(), plan.clone());
        Ok(plan)
    }

    /// A kept way around the statement, if there is one.
    pub fn direct(
        &self,
        key: Vec<u8>,
        build: impl FnOnce() -> Result<Option<Direct>>,
    ) -> Result<Option<Rc<Direct>>> {
        if let Some(direct) = self.directs.borrow().get(&key) {
            return Ok(direct.clone());
        }
        let direct = build()?.map(Rc::new);
        let mut directs = self.directs.borrow_mut();
        if directs.len() >= MOST_PLANS {
            directs.clear();
        }
        directs.insert(key, direct.clone());
        Ok(direct)
    }

    /// The parts of every statement: `{table}`, `{id}`, `{status}`, `{version}` and `{flag}` as values.
    pub fn parts(&self) -> Parts {
        let column = |c: &Option<Column>, without: &str| {
            c.as_ref()
                .map_or(without.to_owned(), |c| format!("t.{}", c.name))
        };
        Parts {
            table: self.shape.table.name.clone(),
            id: format!("t.{}", self.shape.id.name),
            status: format!("t.{}", self.shape.status.name),
            version: column(&self.shape.version, "NULL::pg_catalog.int8"),
            flag: column(&self.shape.flag, "false"),
        }
    }

    /// `, "version" = t."version" + 1` where there is one.
    pub fn next_version(&self) -> String {
        self.shape.version.as_ref().map_or(String::new(), |v| {
            format!(", {0} = t.{0} OPERATOR(pg_catalog.+) 1", v.name)
        })
    }
}

/// See [`Machine::parts`].
pub struct Parts {
    pub table: String,
    pub id: String,
    pub status: String,
    pub version: String,
    pub flag: String,
}

impl Parts {
    pub fn fill(&self, template: &str, more: &[(&str, &str)]) -> String {
        let own = [
            ("table", self.table.as_str()),
            ("id", &self.id),
            ("status", &self.status),
            ("version", &self.version),
            ("flag", &self.flag),
        ];
        super::sql::fill(template, &[own.as_slice(), more].concat())
    }
}

/// A boolean column of a result row; NULL is false.
pub fn yes(row: &Row, i: usize) -> bool {
    column(row, i).is_some_and(|d| d.value() != 0)
}

/// Everything that the definition names, as the catalog has it; ON003 with a line for each that is gone.
fn fit(definition: &Definition, stored: &Stored) -> Result<Shape> {
    let mut missing = Vec::new();
    let shape = Fitting {
        definition,
        missing: &mut missing,
    }
    .shape([Col::Relation, Col::Items, Col::Wallet].map(|col| stored.relation(col)));
    shape.ok_or_else(|| {
        Error::new(
            Kind::InvalidDefinition,
            format!(
                "machine \"{}\" no longer fits its tables",
                definition.machine
            ),
        )
        .detail(missing.join("\n"))
        .hint(
            "Define it again with the present names, or drop it; machine_check lists what changed.",
        )
    })
}

/// What a definition names that is not there (any more), one line each.
pub fn missing(definition: &Definition, stored: &Stored) -> Vec<String> {
    let mut missing = Vec::new();
    Fitting {
        definition,
        missing: &mut missing,
    }
    .shape([Col::Relation, Col::Items, Col::Wallet].map(|col| stored.relation(col)));
    missing
}

fn fit_again(definition: &Definition, shape: &Shape) -> Option<Shape> {
    let refund = shape.refund.as_ref();
    Fitting {
        definition,
        missing: &mut Vec::new(),
    }
    .shape([
        Some(shape.table.oid),
        refund.map(|r| r.items.oid),
        refund.map(|r| r.wallet.oid),
    ])
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

fn known(name: &[u8]) -> Option<Rc<Machine>> {
    MACHINES.with(|m| m.borrow().get(name).cloned())
}

fn listen() {
    if !WATCHING.replace(true) {
        // SAFETY: registered once per backend; the callback lives as long as the library.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), Datum::from(0));
        }
    }
}

/// From now on messages about once.machine count; returns the present count.
fn watch_definitions() -> Result<u64> {
    listen();
    DEFINITIONS_TABLE.set(Table::to_read(TABLE)?.oid());
    Ok(DEFINITIONS.get())
}

/// Tells every backend that a definition has changed.
pub fn definitions_changed() -> Result<()> {
    let table = Table::to_read(TABLE)?.oid();
    // SAFETY: the table is there, locked to the end of the transaction.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) };
    Ok(())
}

/// From now on messages about these tables count; returns the present count.
fn watch(stored: &Stored) -> u64 {
    listen();
    WATCHED.with(|watched| {
        let mut watched = watched.borrow_mut();
        for table in [Col::Relation, Col::Items, Col::Wallet] {
            if let Some(oid) = stored.relation(table).filter(|oid| !watched.contains(oid)) {
                watched.push(oid);
            }
        }
    });
    CHANGES.get()
}

/// Takes the messages of what has been committed, as every first lock of a table does: a definition that was
/// committed before is seen as if its row had been read.
pub fn accept_changes() {
    // SAFETY: may be called wherever a table could be locked.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Grows whenever a table of a known machine may have changed.
pub fn changes() -> u64 {
    CHANGES.get()
}

/// Told by the server of every relation that changes; only counts.
#[pgrx::pg_guard]
extern "C-unwind" fn relation_changed(_arg: Datum, relation: Oid) {
    let ours = || WATCHED.with(|w| w.try_borrow().is_ok_and(|w| w.contains(&relation)));
    if relation == pg_sys::InvalidOid || ours() {
        CHANGES.set(CHANGES.get() + 1);
    }
    if relation == pg_sys::InvalidOid || relation == DEFINITIONS_TABLE.get() {
        DEFINITIONS.set(DEFINITIONS.get() + 1);
    }
}
