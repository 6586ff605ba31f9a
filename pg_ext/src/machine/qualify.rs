//! Qualifies every name of an expression, also those of pg_catalog.
//!
//! `predicate.rs` lets the server write the expression as a text. In this text the names of pg_catalog have no schema.
//! Later a session may put another schema, or a temporary schema, before pg_catalog. Then a bare name may mean another
//! object. So the server's text is parsed here, and each bare operator, function, type or collation gets `pg_catalog.`.
//! A literal with a backslash becomes E'...', which does not depend on standard_conforming_strings.
//!
//! IS DISTINCT FROM and NULLIF have no place for an operator's name; `predicate.rs` allows them with the server's own
//! `=` only.

use super::sql::literal;
use crate::call::{from_utf8, shown};
use crate::error::{Error, Result};
use pgrx::PgList;
use pgrx::pg_sys::{self, Node, NodeTag};
use std::ffi::{CStr, c_void};

/// Puts `text` in place of `length` bytes of the expression, from byte `at` on.
struct Edit {
    at: usize,
    length: usize,
    text: Vec<u8>,
}

/// Qualifies every name in the text of one expression. Its bare names must all be names of pg_catalog.
pub fn qualified(text: &CStr) -> Result<Vec<u8>> {
    let mut found = Found {
        text: text.to_bytes(),
        edits: Vec::new(),
    };
    let context = (&raw mut found).cast();
    // SAFETY: the text ends with NUL; the tree lives in the current memory context. The walker calls `visit` with
    // nodes of this tree and with `context`. `visit` raises errors (such as a tree that is too deep) as the server's C
    // functions do; pg_guard_ffi_boundary catches them.
    unsafe {
        let mode = pg_sys::RawParseMode::RAW_PARSE_PLPGSQL_EXPR;
        let tree = pg_sys::raw_parser(text.as_ptr(), mode);
        let statements = PgList::<pg_sys::RawStmt>::from_pg(tree);
        let statement = statements.get_ptr(0).map(|raw| (*raw).stmt);
        let root = statement.unwrap_or(std::ptr::null_mut());
        pg_sys::ffi::pg_guard_ffi_boundary(|| visit(root, context));
    }
    apply(found)
}

struct Found<'a> {
    text: &'a [u8],
    edits: Vec<Edit>,
}

impl Found<'_> {
    fn replace(&mut self, at: i32, length: usize, text: impl Into<Vec<u8>>) {
        self.edits.push(Edit {
            at: at.max(0) as usize,
            length,
            text: text.into(),
        });
    }

    fn put_before(&mut self, at: i32) {
        self.replace(at, 0, "pg_catalog.");
    }

    /// Where the name after the word COLLATE begins.
    fn after_collate(&self, at: i32) -> i32 {
        const WORD: usize = "COLLATE".len();
        let rest = self
            .text
            .get(at.max(0) as usize + WORD..)
            .unwrap_or_default();
        let spaces = rest
            .iter()
            .take_while(|byte| byte.is_ascii_whitespace())
            .count();
        at + (WORD + spaces) as i32
    }
}

/// Collects the edits that a node needs, then visits its children. Returns false, which continues the walk.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn visit(node: *mut Node, context: *mut c_void) -> bool {
    if node.is_null() {
        return false;
    }
    // SAFETY: a node of the grammar's tree, read as what its tag says; `qualified` gave the context, and nobody else
    // uses the context meanwhile.
    unsafe {
        let found = &mut *context.cast::<Found>();
        match (*node).type_ {
            NodeTag::T_A_Expr => {
                let e = &*node.cast::<pg_sys::A_Expr>();
                let written = matches!(
                    e.kind,
                    pg_sys::A_Expr_Kind::AEXPR_OP
                        | pg_sys::A_Expr_Kind::AEXPR_OP_ANY
                        | pg_sys::A_Expr_Kind::AEXPR_OP_ALL
                );
                if let Some(operator) = bare(e.name).filter(|_| written) {
                    let text = [b"OPERATOR(pg_catalog.", operator.to_bytes(), b")"].concat();
                    found.replace(e.location, operator.count_bytes(), text);
                }
            }
            NodeTag::T_A_Const => {
                let c = &*node.cast::<pg_sys::A_Const>();
                if c.val.node.type_ == NodeTag::T_String && !c.isnull {
                    let value = CStr::from_ptr(c.val.sval.sval).to_bytes();
                    let quotes = value.iter().filter(|byte| **byte == b'\'').count();
                    if value.contains(&b'\\') {
                        let text = from_utf8(&literal(&shown(value))).into_owned();
                        found.replace(c.location, value.len() + quotes + 2, text);
                    }
                }
            }
            NodeTag::T_FuncCall => {
                let f = &*node.cast::<pg_sys::FuncCall>();
                if bare(f.funcname).is_some() {
                    found.put_before(f.location);
                }
            }
            NodeTag::T_TypeName => {
                let t = &*node.cast::<pg_sys::TypeName>();
                if bare(t.names).is_some() {
                    found.put_before(t.location);
                }
            }
            NodeTag::T_CollateClause => {
                let c = &*node.cast::<pg_sys::CollateClause>();
                if bare(c.collname).is_some() {
                    let at = found.after_collate(c.location);
                    found.put_before(at);
                }
            }
            _ => {}
        }
        pg_sys::raw_expression_tree_walker(node, Some(visit), context)
    }
}

/// A name without a schema; None: the name is qualified.
///
/// SAFETY: `name` is null or a list of the grammar's strings.
unsafe fn bare<'a>(name: *mut pg_sys::List) -> Option<&'a CStr> {
    // SAFETY: as the caller says; the string lives as long as the tree.
    unsafe {
        let parts = PgList::<pg_sys::String>::from_pg(name);
        match (parts.len(), parts.get_ptr(0)) {
            (1, Some(only)) => Some(CStr::from_ptr((*only).sval)),
            _ => None,
        }
    }
}

fn apply(found: Found) -> Result<Vec<u8>> {
    let Found { text, mut edits } = found;
    edits.sort_by_key(|edit| edit.at);
    let mut result = Vec::with_capacity(text.len() * 2);
    let mut done = 0;
    for edit in edits {
        let Some(between) = text
            .get(done..edit.at)
            .filter(|_| edit.at + edit.length <= text.len())
        else {
            return Err(Error::internal("a name outside its expression"));
        };
        result.extend_from_slice(between);
        result.extend_from_slice(&edit.text);
        done = edit.at + edit.length;
    }
    result.extend_from_slice(text.get(done..).unwrap_or_default());
    Ok(result)
}
