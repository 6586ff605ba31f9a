//! Forms that compare with an operator that they do not name, written with one that they do.
//!
//! IS DISTINCT FROM and CASE x WHEN y take `=` from the search_path of whoever runs the statement, and no
//! syntax says which one. In the grammar's tree they are replaced by what they stand for: by a comparison
//! with `=`, whose name can be qualified afterwards. NULLIF is refused: it has no place to put one.

use crate::error::{Error, Kind, Result};
use pgrx::pg_sys::{self, A_Expr_Kind, Node, NodeTag};
use pgrx::{PgBox, PgList};
use std::ffi::{CStr, c_void};

/// Most comparisons that are spelled out: each doubles what is inside it.
const MOST: usize = 1000;

const EQUALS: &CStr = c"=";

/// What was done, and why the expression cannot be kept.
#[derive(Default)]
struct Spelling {
    done: usize,
    refused: Option<&'static str>,
}

/// Changes the tree of an expression in place.
///
/// SAFETY: `expression` is a tree of the grammar's, not analysed yet.
pub unsafe fn out(expression: *mut Node) -> Result<()> {
    let mut spelling = Spelling::default();
    let context = (&raw mut spelling).cast();
    // SAFETY: the walker hands each node to `visit` with the context that it is given here. `visit` is called
    // as the server calls it: what it raises (a tree that is too deep) has to be caught as the server's.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| visit(expression, context)) };
    match spelling.refused {
        Some(why) => Err(Error::new(Kind::InvalidDefinition, why)),
        None => Ok(()),
    }
}

/// Spells a node out, then looks at its children, new ones included. Stops (true) where something is refused.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn visit(node: *mut Node, context: *mut c_void) -> bool {
    if node.is_null() {
        return false;
    }
    // SAFETY: a node of the grammar's tree, read as what its tag says; the context is the one `out` gave,
    // and nobody else uses it meanwhile.
    unsafe {
        let spelling = &mut *context.cast::<Spelling>();
        match (*node).type_ {
            NodeTag::T_A_Expr => comparison(&mut *node.cast(), spelling),
            NodeTag::T_CaseExpr => simple_case(&mut *node.cast(), spelling),
            _ => {}
        }
        if spelling.done > MOST {
            spelling.refused = Some("has too many comparisons by IS DISTINCT FROM or CASE x WHEN");
        }
        spelling.refused.is_some() || pg_sys::raw_expression_tree_walker(node, Some(visit), context)
    }
}

/// `a IS DISTINCT FROM b` is `COALESCE(a = b, a IS NULL AND b IS NULL) = false`, its opposite `= true`.
///
/// SAFETY: a comparison of the grammar's tree.
unsafe fn comparison(e: &mut pg_sys::A_Expr, spelling: &mut Spelling) {
    let equal = match e.kind {
        A_Expr_Kind::AEXPR_DISTINCT => c"false",
        A_Expr_Kind::AEXPR_NOT_DISTINCT => c"true",
        A_Expr_Kind::AEXPR_NULLIF => {
            spelling.refused = Some("has NULLIF; write CASE WHEN a = b THEN NULL ELSE a END");
            return;
        }
        _ => return,
    };
    // SAFETY: as the caller says; what is made lives in the current memory context, as the tree does.
    unsafe {
        let (left, right) = (e.lexpr, e.rexpr);
        if is_null(left) || is_null(right) {
            // A test for NULL, without any operator.
            return;
        }
        if is_row(left) || is_row(right) {
            spelling.refused = Some("compares rows by IS DISTINCT FROM; compare their columns");
            return;
        }
        let both = list(&[null_test(copy(left)), null_test(copy(right))]);
        let both_null = pg_sys::makeBoolExpr(pg_sys::BoolExprType::AND_EXPR, both, -1);
        let mut coalesce = PgBox::<pg_sys::CoalesceExpr>::alloc_node(NodeTag::T_CoalesceExpr);
        coalesce.args = list(&[equals(left, right), both_null.cast()]);
        coalesce.location = -1;
        e.kind = A_Expr_Kind::AEXPR_OP;
        e.name = name();
        e.lexpr = coalesce.into_pg().cast();
        e.rexpr = constant(equal);
    }
    spelling.done += 1;
}

/// `CASE x WHEN y` is `CASE WHEN x = y`.
///
/// SAFETY: a CASE of the grammar's tree.
unsafe fn simple_case(case: &mut pg_sys::CaseExpr, spelling: &mut Spelling) {
    if case.arg.is_null() {
        return;
    }
    // SAFETY: as the caller says: its arguments are a list of WHENs.
    unsafe {
        for when in PgList::<pg_sys::CaseWhen>::from_pg(case.args).iter_ptr() {
            (*when).expr = equals(copy(case.arg.cast()), (*when).expr.cast()).cast();
            spelling.done += 1;
        }
    }
    case.arg = std::ptr::null_mut();
}

unsafe fn equals(left: *mut Node, right: *mut Node) -> *mut Node {
    // SAFETY: two trees of the grammar; the name is copied.
    unsafe {
        let name = pg_sys::pstrdup(EQUALS.as_ptr());
        pg_sys::makeSimpleA_Expr(A_Expr_Kind::AEXPR_OP, name, left, right, -1).cast()
    }
}

/// The name of `=` as the grammar has it.
unsafe fn name() -> *mut pg_sys::List {
    // SAFETY: the comparison of nothing with nothing is only made for its name.
    unsafe {
        let nothing = std::ptr::null_mut();
        (*equals(nothing, nothing).cast::<pg_sys::A_Expr>()).name
    }
}

unsafe fn null_test(of: *mut Node) -> *mut Node {
    // SAFETY: allocates a node and fills it; the rest is zero.
    let mut test = unsafe { PgBox::<pg_sys::NullTest>::alloc_node(NodeTag::T_NullTest) };
    test.arg = of.cast();
    test.nulltesttype = pg_sys::NullTestType::IS_NULL;
    test.location = -1;
    test.into_pg().cast()
}

/// A constant as the grammar makes it of its text.
unsafe fn constant(text: &CStr) -> *mut Node {
    // SAFETY: in this mode a word is one raw SELECT with one target.
    unsafe {
        let mode = pg_sys::RawParseMode::RAW_PARSE_PLPGSQL_EXPR;
        let raw = PgList::<pg_sys::RawStmt>::from_pg(pg_sys::raw_parser(text.as_ptr(), mode));
        let select = raw
            .get_ptr(0)
            .map(|raw| (*raw).stmt.cast::<pg_sys::SelectStmt>());
        let targets = select.map(|s| PgList::<pg_sys::ResTarget>::from_pg((*s).targetList));
        let target = targets.and_then(|targets| targets.get_ptr(0));
        target.map_or(std::ptr::null_mut(), |target| (*target).val)
    }
}

unsafe fn copy(tree: *mut Node) -> *mut Node {
    // SAFETY: a complete tree.
    unsafe { pg_sys::copyObjectImpl(tree.cast()).cast() }
}

unsafe fn list(nodes: &[*mut Node]) -> *mut pg_sys::List {
    let mut list = std::ptr::null_mut();
    for node in nodes {
        // SAFETY: appends to a list of nodes, null at first.
        list = unsafe { pg_sys::lappend(list, (*node).cast()) };
    }
    list
}

unsafe fn is_null(node: *mut Node) -> bool {
    // SAFETY: null or a node that is what its tag says.
    unsafe {
        !node.is_null()
            && (*node).type_ == NodeTag::T_A_Const
            && (*node.cast::<pg_sys::A_Const>()).isnull
    }
}

unsafe fn is_row(node: *mut Node) -> bool {
    // SAFETY: null or a node.
    unsafe { !node.is_null() && (*node).type_ == NodeTag::T_RowExpr }
}
