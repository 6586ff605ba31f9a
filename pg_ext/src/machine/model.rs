//! A machine as a backend uses it: its definition fitted to the present tables, and its prepared statements.
//!
//! A backend is one thread, so a `thread_local` is enough. Each change of a definition sends a relcache message about
//! once.machine. A backend then reads the machine's row again, and reads the definition if the revision is new.
//! After a message about a table of any machine, or about a schema, a backend looks up names and columns again.

use super::changes;
use super::definition::{Definition, Refund};
use super::direct::Direct;
use super::id::{self, RowId};
use super::relation::UserColumn;
use super::shape::{self, MachineShape, RefundShape};
use super::statement::{Locks, Statement};
use super::stored::{self, StoredMachine};
use crate::call::{Call, SCOPE_MAX};
use crate::error::{Error, Kind, Result};
use crate::spi::{Row, SwitchedUser};
use crate::table::Table;
use pgrx::pg_sys::{self, Oid};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// The most entries of `plans`, of `directs` and of `patched`. A full map is emptied before an entry is added.
const MOST_PLANS: usize = 300;

thread_local! {
    static MACHINES: RefCell<HashMap<Vec<u8>, Rc<Machine>>> = RefCell::new(HashMap::new());
}

/// A definition fitted to its tables.
pub struct Machine {
    pub definition: Definition,
    pub revision: i64,
    /// See [`Definition::is_followed`].
    pub is_followed: bool,
    pub shape: MachineShape,
    /// See [`super::lock_of`].
    pub lock: u64,
    checked: Cell<u64>,
    /// The count of [`changes::DEFINITIONS`] before the machine's row was last read.
    read: Cell<Option<u64>>,
    /// Whether the machine has an owner. If it has, [`Machine::named`] checks the caller's membership in each call. An
    /// older check may be out of date, because [`changes`] does not count changes of roles.
    owned: Cell<bool>,
    plans: RefCell<HashMap<Vec<u8>, Rc<Statement>>>,
    /// Moves that need no SQL statement; None: the move needs one.
    directs: RefCell<HashMap<Vec<u8>, Option<Rc<Direct>>>>,
    /// Key: the names of all members of a patch. Value: the columns that the patch sets.
    pub patched: RefCell<HashMap<Vec<u8>, Rc<Vec<UserColumn>>>>,
}

impl Machine {
    /// The machine that argument 0 names; 42501 if it has an owner and the caller is no member of that role.
    pub fn of(call: &Call) -> Result<Rc<Machine>> {
        Machine::named(call.text(0, "machine", SCOPE_MAX)?)
    }

    /// A machine by name; 42501 if it has an owner and the caller is no member of that role.
    pub fn named(name: &[u8]) -> Result<Rc<Machine>> {
        changes::accept();
        if let Some(machine) = known(name).filter(|m| m.is_current() && !m.owned.get()) {
            return Ok(machine);
        }
        let seen = changes::DEFINITIONS.add([Table::to_read(stored::TABLE)?.oid()]);
        let stored = StoredMachine::existing(name)?;
        let owner = stored.owner()?;
        if let Some(owner) = owner {
            owner.ensure_member("machine", name)?;
        }
        let machine = Machine::fitted(name, &stored)?;
        machine.read.set(Some(seen));
        machine.owned.set(owner.is_some());
        Ok(machine)
    }

    /// Whether no message about definitions or machines' tables has come since this machine was read and checked.
    pub fn is_current(&self) -> bool {
        self.read.get() == Some(changes::DEFINITIONS.count())
            && self.checked.get() == changes::TABLES.count()
    }

    /// A machine by name, for guards, sweeps and functions that only read: no owner is checked.
    pub fn for_tables(name: &[u8]) -> Result<Rc<Machine>> {
        Machine::fitted(name, &StoredMachine::existing(name)?)
    }

    /// The machine of a stored row: the cached machine if it still fits the row.
    pub fn fitted(name: &[u8], stored: &StoredMachine) -> Result<Rc<Machine>> {
        if let Some(machine) = known(name)
            && machine.revision == stored.revision()
            && machine.still_fits(stored)
        {
            return Ok(machine);
        }
        let changes = changes::TABLES.add(stored.tables().into_iter().flatten());
        let definition = stored.definition()?;
        let machine = Rc::new(Machine {
            shape: shape::look_up_names(&definition, stored.tables()).map_err(|missing| {
                let hint = "Define it again with the present names, or drop it; machine_check lists what changed.";
                unfit(&definition.machine, &missing.join("\n"), hint)
            })?,
            lock: super::lock_of(&definition.machine),
            is_followed: definition.is_followed(),
            definition,
            revision: stored.revision(),
            checked: Cell::new(changes),
            read: Cell::new(None),
            owned: Cell::new(false),
            plans: RefCell::default(),
            directs: RefCell::default(),
            patched: RefCell::default(),
        });
        MACHINES.with(|m| m.borrow_mut().insert(name.to_vec(), machine.clone()));
        Ok(machine)
    }

    fn still_fits(&self, stored: &StoredMachine) -> bool {
        let changes = changes::TABLES.count();
        if self.checked.get() == changes {
            return true;
        }
        // The server plans a kept statement anew if its tables change, but not if the type of a row parameter changes.
        self.plans.borrow_mut().clear();
        self.directs.borrow_mut().clear();
        self.patched.borrow_mut().clear();
        let fits =
            shape::look_up_names(&self.definition, stored.tables()).as_ref() == Ok(&self.shape);
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
        let text = call
            .printed(i, "id")?
            .ok_or_else(|| Error::bad_argument("id", "must not be null", "Give the row's id."))?;
        RowId::read(self.shape.id.base_type, text, "id")
    }

    pub fn id_type(&self) -> Oid {
        id::parameter_type(self.shape.id.base_type)
    }

    pub fn id_array_type(&self) -> Oid {
        // SAFETY: looks into the system cache.
        unsafe { pg_sys::get_array_type(self.id_type()) }
    }

    /// The declared refund and its present columns; 22023 if the machine declares no refund.
    pub fn refund(&self) -> Result<(&Refund, &RefundShape)> {
        match (&self.definition.refund, &self.shape.refund) {
            (Some(refund), Some(shape)) => Ok((refund, shape)),
            _ => Err(self.undeclared("refund").hint("A machine without \"refund\" has no items to refund: go on with once.cancel_finish. To refund items, add the member \"refund\" to the definition.")),
        }
    }

    pub fn undeclared(&self, member: &str) -> Error {
        Error::bad_argument(
            "machine",
            format!("\"{}\" declares no \"{member}\"", self.name()),
            format!("Add the member \"{member}\" to its definition and call machine_define."),
        )
    }

    /// Locks the table, and runs `work` as its owner in a security-restricted operation. None: the table is gone.
    pub fn as_owner<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let owner = self.shape.table.locked_owner(pg_sys::AccessShareLock);
        let Some(owner) = owner else {
            return Ok(None);
        };
        let _owner = SwitchedUser::to_owner_of_table(owner)?;
        work().map(Some)
    }

    /// 42501 unless the caller may update the row's status: leases and teardowns need that right.
    pub fn ensure_may_update(&self) -> Result<()> {
        let table = &self.shape.table;
        // If the table or the column was dropped, `is_gone` becomes true, and this check passes. The next SQL statement
        // on the table then reports what is missing.
        let mut is_gone = false;
        // SAFETY: both look into the system caches.
        let may = unsafe {
            let (user, update) = (pg_sys::GetUserId(), pg_sys::ACL_UPDATE as pg_sys::AclMode);
            let of_table = pg_sys::pg_class_aclcheck_ext(table.oid, user, update, &mut is_gone);
            let number = self.shape.status.number;
            of_table == pg_sys::AclResult::ACLCHECK_OK
                || pg_sys::pg_attribute_aclcheck_ext(table.oid, number, user, update, &mut is_gone)
                    == pg_sys::AclResult::ACLCHECK_OK
                || is_gone
        };
        may.then_some(()).ok_or_else(|| {
            Error::new(
                Kind::NotYours,
                format!("permission denied for table {}", table.name),
            )
            .hint("GRANT SELECT and UPDATE on it to the caller.")
        })
    }

    pub fn row_named(&self, id: &RowId) -> String {
        format!("row \"{}\" of machine \"{}\"", id.shown(), self.name())
    }

    /// Names the row in errors of a lost race, without its id.
    pub fn any_row(&self) -> String {
        format!("a row of machine \"{}\"", self.name())
    }

    /// ON002: a trigger, a rule or a policy suppressed or changed the UPDATE of an existing row.
    pub fn kept_back(&self, id: &RowId) -> Error {
        Error::new(
            Kind::IllegalTransition,
            format!("the update of {} was suppressed", self.row_named(id)),
        )
        .hint("A trigger, a rule or a policy of the table suppresses or changes the update. Change it so that it does not affect this machine's moves.")
    }

    /// `rows` is what a statement returned for one id. Returns the only row. None: there is no row. Several rows raise
    /// ON003: the unique index of the id is gone, or an inheriting table repeats the id.
    pub fn one<'a>(&self, rows: &'a [Row]) -> Result<Option<&'a Row>> {
        match rows {
            [] => Ok(None),
            [row] => Ok(Some(row)),
            _ => Err(unfit(
                self.name(),
                "A key names more than one row: its unique index is gone.",
                "Make the keys unique again; machine_check lists what changed.",
            )),
        }
    }

    /// A kept statement; `key` identifies it among the machine's statements. `build` makes the SQL of a new one.
    pub fn plan(
        &self,
        key: impl AsRef<[u8]>,
        types: &[Oid],
        locks: Locks,
        build: impl FnOnce() -> String,
    ) -> Result<Rc<Statement>> {
        self.plan_or(key, types, locks, || Ok(build()))
    }

    /// Like [`Machine::plan`], for a statement that `build` may refuse. A kept statement is not built again.
    pub fn plan_or(
        &self,
        key: impl AsRef<[u8]>,
        types: &[Oid],
        locks: Locks,
        build: impl FnOnce() -> Result<String>,
    ) -> Result<Rc<Statement>> {
        kept(&self.plans, key.as_ref(), || {
            let plan = Statement::prepare(&build()?, types, self.any_row(), &self.shape, locks)?;
            Ok(Rc::new(plan))
        })
    }

    /// A kept move that needs no SQL statement; None: the move needs one.
    pub fn direct(
        &self,
        key: Vec<u8>,
        build: impl FnOnce() -> Result<Option<Direct>>,
    ) -> Result<Option<Rc<Direct>>> {
        kept(&self.directs, &key, || Ok(build()?.map(Rc::new)))
    }

    /// The parts of every statement: `{table}`, and the expressions `{id}`, `{status}`, `{version}` and `{flag}`.
    pub fn parts(&self) -> Parts {
        let column = |c: &Option<UserColumn>, without: &str| {
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

    /// `, "version" = t."version" + 1` where the machine has a version.
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

fn unfit(machine: &str, detail: &str, hint: &str) -> Error {
    let message = format!("machine \"{machine}\" no longer fits its tables");
    Error::new(Kind::InvalidDefinition, message)
        .detail(detail)
        .hint(hint)
}

/// The value that is kept under a key. If there is none, `build` makes it.
pub fn kept<T: Clone>(
    all: &RefCell<HashMap<Vec<u8>, T>>,
    key: &[u8],
    build: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if let Some(known) = all.borrow().get(key) {
        return Ok(known.clone());
    }
    let new = build()?;
    let mut all = all.borrow_mut();
    if all.len() >= MOST_PLANS {
        all.clear();
    }
    all.insert(key.to_vec(), new.clone());
    Ok(new)
}

fn known(name: &[u8]) -> Option<Rc<Machine>> {
    MACHINES.with(|m| m.borrow().get(name).cloned())
}
