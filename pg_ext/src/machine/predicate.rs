//! A `when`: a predicate over one row's own columns, as in a CHECK constraint.
//!
//! The server's own parser reads the predicate when the machine is defined. The server then writes the parsed form as a
//! text in which every implicit cast is written out and each literal means the same under every setting. `qualify.rs`
//! qualifies every name, and the result is stored. So a statement that contains this text between parentheses means the
//! same for every caller. A predicate is refused if it is not immutable, or if it contains a comparison that does not
//! name its operator (see `unnamed`).

use super::faults::quoted;
use super::qualify;
use crate::call::{from_utf8, shown};
use crate::error::{Error, Kind, Result};
use crate::settings::under;
use crate::subxact;
use pgrx::pg_sys::{self, Node, NodeTag, Oid};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_void};

/// A predicate in its stored form.
#[derive(Debug)]
pub struct Predicate {
    pub text: String,
    /// The columns that it names.
    pub columns: BTreeSet<String>,
}

/// The settings under which the server writes the text. With them the text has a schema before each name outside
/// pg_catalog, and its times, intervals, numbers and quotation marks mean the same in every session.
const WRITTEN_UNDER: [(&CStr, &CStr); 7] = [
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"DateStyle", c"ISO, YMD"),
    (c"IntervalStyle", c"postgres"),
    (c"TimeZone", c"UTC"),
    (c"extra_float_digits", c"3"),
    (c"quote_all_identifiers", c"off"),
    (c"standard_conforming_strings", c"on"),
];

/// The loop in `written` runs at most this many rounds; a text that still changes in the last round is refused.
const READINGS: usize = 5;

/// Reads a predicate over the columns of a locked table. The inner error says why it is refused.
pub fn read_predicate(relation: Oid, text: &str) -> Result<std::result::Result<Predicate, String>> {
    let Ok(source) = CString::new(from_utf8(text).into_owned()) else {
        return Ok(Err("contains a NUL character".to_owned()));
    };
    let read = subxact::attempt(|| {
        let open = Opened::relation(relation);
        let path = callers_path()?;
        let expression = under(&[(c"search_path", &path)], || analysed(&open, &source))?;
        let columns = open.columns(expression)?;
        let text = under(&WRITTEN_UNDER, || {
            open.ensure_names_its_operators(expression)?;
            open.ensure_immutable(expression)?;
            open.written(expression)
        })?;
        open.close();
        Ok(Predicate { text, columns })
    })?;
    Ok(read.map_err(|failure| failure.message))
}

/// The caller's search_path with pg_catalog first, so that a name of pg_catalog means the same for every caller.
fn callers_path() -> Result<CString> {
    // SAFETY: a setting's text; the server never leaves it null.
    let path = unsafe { CStr::from_ptr(pg_sys::namespace_search_path) }.to_bytes();
    let path = match path.trim_ascii() {
        [] => b"pg_catalog, pg_temp".to_vec(),
        path => [b"pg_catalog, ", path, b", pg_temp"].concat(),
    };
    CString::new(path).map_err(Error::internal)
}

fn refused<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::new(Kind::InvalidDefinition, why))
}

/// The raw parse tree of a text that is one expression.
fn only_expression(source: &CStr) -> Result<*mut Node> {
    // SAFETY: the grammar's tree lives in the current memory context. In this mode the grammar makes a list of one
    // RawStmt, which has a SelectStmt (its tag is checked), whose targets are ResTargets.
    unsafe {
        let mode = pg_sys::RawParseMode::RAW_PARSE_PLPGSQL_EXPR;
        let statements =
            pgrx::PgList::<pg_sys::RawStmt>::from_pg(pg_sys::raw_parser(source.as_ptr(), mode));
        let select = match statements.get_ptr(0).map(|raw| (*raw).stmt) {
            Some(node) if statements.len() == 1 && is(node, NodeTag::T_SelectStmt) => {
                node.cast::<pg_sys::SelectStmt>()
            }
            _ => return refused("must be one expression"),
        };
        if !is_bare(&*select) {
            return refused("must be an expression only, without any clause of a query");
        }
        let targets = pgrx::PgList::<pg_sys::ResTarget>::from_pg((*select).targetList);
        let target = match (targets.len(), targets.get_ptr(0)) {
            (1, Some(target)) => &*target,
            (0, _) => return refused("is empty"),
            _ => return refused("must be one expression"),
        };
        if !target.name.is_null() || !target.indirection.is_null() {
            return refused("must be an expression without a name for its result");
        }
        if is_star(target.val) {
            return refused("must be one expression, not *");
        }
        Ok(target.val)
    }
}

/// A SELECT that has targets only.
fn is_bare(select: &pg_sys::SelectStmt) -> bool {
    let lists = [
        select.distinctClause,
        select.fromClause,
        select.groupClause,
        select.windowClause,
        select.valuesLists,
        select.sortClause,
        select.lockingClause,
    ];
    let nodes = [
        select.whereClause,
        select.havingClause,
        select.limitOffset,
        select.limitCount,
    ];
    lists.iter().all(|list| list.is_null())
        && nodes.iter().all(|node| node.is_null())
        && select.intoClause.is_null()
        && select.withClause.is_null()
        && select.op == pg_sys::SetOperation::SETOP_NONE
}

/// SAFETY: `node` is null or a node.
unsafe fn is(node: *mut Node, tag: pg_sys::NodeTag) -> bool {
    // SAFETY: every node begins with its tag.
    !node.is_null() && unsafe { (*node).type_ } == tag
}

/// A lone `*`. The analysis of expressions would take it for a name.
///
/// SAFETY: `node` is null or a node.
unsafe fn is_star(node: *mut Node) -> bool {
    // SAFETY: a column reference has a list of nodes.
    unsafe {
        if !is(node, NodeTag::T_ColumnRef) {
            return false;
        }
        let fields = pgrx::PgList::<Node>::from_pg((*node.cast::<pg_sys::ColumnRef>()).fields);
        fields.len() == 1
            && fields
                .get_ptr(0)
                .is_some_and(|field| is(field, NodeTag::T_A_Star))
    }
}

/// The expression with every name resolved, as in a CHECK constraint. The server refuses
/// subqueries, aggregates, window and set-returning functions, and parameters.
fn analysed(open: &Opened, source: &CStr) -> Result<*mut Node> {
    let raw = only_expression(source)?;
    // SAFETY: the relation is open and locked; the parse state is freed before the relation is closed, and
    // what it hands out lives in the current memory context.
    unsafe {
        let state = pg_sys::make_parsestate(std::ptr::null_mut());
        (*state).p_sourcetext = source.as_ptr();
        let lock = pg_sys::AccessShareLock as i32;
        let no_alias = std::ptr::null_mut();
        let item =
            pg_sys::addRangeTableEntryForRelation(state, open.0, lock, no_alias, false, true);
        pg_sys::addNSItemToQuery(state, item, true, true, true);
        let kind = pg_sys::ParseExprKind::EXPR_KIND_CHECK_CONSTRAINT;
        let expression = pg_sys::transformExpr(state, raw, kind);
        let expression = pg_sys::coerce_to_boolean(state, expression, c"when".as_ptr());
        pg_sys::assign_expr_collations(state, expression);
        pg_sys::free_parsestate(state);
        Ok(expression)
    }
}

/// The part of an expression that `visit` finds.
///
/// SAFETY: `visit` takes a `*mut *mut Node` as its context.
unsafe fn first(expression: *mut Node, visit: Visit) -> Option<*mut Node> {
    let mut found: *mut Node = std::ptr::null_mut();
    let context = (&raw mut found).cast();
    // SAFETY: a complete tree. `visit` raises errors (such as a tree that is too deep) as the server's C functions do;
    // pg_guard_ffi_boundary catches them.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| visit(expression, context)) };
    (!found.is_null()).then_some(found)
}

type Visit = unsafe extern "C-unwind" fn(*mut Node, *mut c_void) -> bool;

/// Finds a comparison that does not name its operator: CASE with an operand, or an IS DISTINCT FROM or NULLIF that does
/// not use the server's own `=`.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn unnamed(node: *mut Node, found: *mut c_void) -> bool {
    if node.is_null() {
        return false;
    }
    // SAFETY: a node is what its tag says; `first` gave the context.
    unsafe {
        let is_unnamed = match (*node).type_ {
            NodeTag::T_CaseExpr => !(*node.cast::<pg_sys::CaseExpr>()).arg.is_null(),
            NodeTag::T_DistinctExpr | NodeTag::T_NullIfExpr => {
                let operator = (*node.cast::<pg_sys::OpExpr>()).opno;
                operator.to_u32() >= pg_sys::FirstNormalObjectId
            }
            _ => false,
        };
        if is_unnamed {
            *found.cast() = node;
        }
        is_unnamed || pg_sys::expression_tree_walker(node, Some(unnamed), found)
    }
}

/// Finds the smallest part that is not immutable.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn mutable(node: *mut Node, found: *mut c_void) -> bool {
    // SAFETY: null or a node of a complete tree; `first` gave the context.
    unsafe {
        if node.is_null() || !pg_sys::contain_mutable_functions(node) {
            return false;
        }
        *found.cast() = node;
        pg_sys::expression_tree_walker(node, Some(mutable), found);
    }
    true
}

/// The open table. After an error the subtransaction's end closes it.
struct Opened(pg_sys::Relation);

impl Opened {
    fn relation(oid: Oid) -> Opened {
        // SAFETY: raises for a table that is gone.
        Opened(unsafe { pg_sys::table_open(oid, pg_sys::AccessShareLock as i32) })
    }

    fn close(self) {
        // SAFETY: opened by us; the lock stays to the end of the transaction.
        unsafe { pg_sys::relation_close(self.0, pg_sys::NoLock as i32) };
    }

    /// The columns that an expression names. Refuses whole-row references, system and virtual generated columns.
    fn columns(&self, expression: *mut Node) -> Result<BTreeSet<String>> {
        let mut numbers: *mut pg_sys::Bitmapset = std::ptr::null_mut();
        let mut columns = BTreeSet::new();
        // SAFETY: the tree names columns of one table only, which has number 1 in the tree. A member of the set is a
        // column's number minus FirstLowInvalidHeapAttributeNumber. Every number above 0 is a column of the open table.
        unsafe {
            pg_sys::pull_varattnos(expression, 1, &mut numbers);
            let mut next = -1;
            loop {
                next = pg_sys::bms_next_member(numbers, next);
                if next < 0 {
                    return Ok(columns);
                }
                let number = next + pg_sys::FirstLowInvalidHeapAttributeNumber;
                match number {
                    0 => return refused("names the whole row; name its columns"),
                    n if n < 0 => return refused("names a system column"),
                    _ => {}
                }
                if pg_sys::get_attgenerated((*self.0).rd_id, number as i16) as u8 == b'v' {
                    return refused("names a virtual generated column");
                }
                let name = pg_sys::get_attname((*self.0).rd_id, number as i16, false);
                columns.insert(shown(CStr::from_ptr(name).to_bytes()));
            }
        }
    }

    fn ensure_names_its_operators(&self, expression: *mut Node) -> Result<()> {
        // SAFETY: `first` gives the visitor's context.
        let Some(part) = (unsafe { first(expression, unnamed) }) else {
            return Ok(());
        };
        let text = quoted(&shown(self.deparsed(part).to_bytes()));
        // SAFETY: a node is what its tag says; the server makes a new string.
        let operator = unsafe {
            if is(part, NodeTag::T_CaseExpr) {
                return refused(format!("has {text}; write CASE WHEN ... = ... THEN"));
            }
            CStr::from_ptr(pg_sys::format_operator(
                (*part.cast::<pg_sys::OpExpr>()).opno,
            ))
        };
        let operator = shown(operator.to_bytes());
        refused(format!(
            "has {text}, which compares by {operator} without naming it"
        ))
    }

    fn ensure_immutable(&self, expression: *mut Node) -> Result<()> {
        // SAFETY: a complete tree; the planner makes a copy and fills in default arguments. `first` gives the visitor's
        // context.
        let part = unsafe {
            first(expression, mutable).or_else(|| {
                first(
                    pg_sys::expression_planner(expression.cast()).cast(),
                    mutable,
                )
            })
        };
        match part {
            None => Ok(()),
            Some(part) => {
                let text = quoted(&shown(self.deparsed(part).to_bytes()));
                refused(format!("has {text}, which is not immutable"))
            }
        }
    }

    /// The stored text: the server's text of the expression (`plain`), with every name qualified. Both texts must give
    /// the same expression when the server reads them. Reading and writing may change `plain`, so the loop runs until
    /// `plain` stays the same.
    fn written(&self, expression: *mut Node) -> Result<String> {
        let mut plain = self.deparsed(expression);
        for _ in 0..READINGS {
            let text = shown(&qualify::qualified(plain)?);
            let source = CString::new(from_utf8(&text).into_owned()).map_err(Error::internal)?;
            let again = self.deparsed(analysed(self, plain)?);
            if self.deparsed(analysed(self, &source)?) != again {
                break;
            }
            if again == plain {
                return Ok(text);
            }
            plain = again;
        }
        refused("cannot be written with every name qualified")
    }

    /// The expression as the server writes it.
    fn deparsed<'a>(&self, expression: *mut Node) -> &'a CStr {
        // SAFETY: the relation is open; the result is a C string in the current memory context, which
        // lives as long as the call.
        unsafe {
            let table = pg_sys::get_rel_name((*self.0).rd_id);
            let context = pg_sys::deparse_context_for(table, (*self.0).rd_id);
            CStr::from_ptr(pg_sys::deparse_expression(expression, context, false, true))
        }
    }
}
