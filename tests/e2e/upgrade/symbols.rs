//! A released symbol never vanishes, and a released function keeps its arguments and what it returns.

use std::collections::BTreeSet;

use crate::next::{fresh, old, script};

/// A function over a symbol of the library; the server looks the symbol and its convention up.
fn create(symbol: &str) -> String {
    format!(
        "create function pg_temp.probe() returns void language c as '$libdir/pg_once', '{symbol}';
         drop function pg_temp.probe()"
    )
}

#[tokio::test]
async fn the_library_exports_every_symbol_of_the_released_script() {
    let play = old().await;
    let missing = play.refused(&create("pg_once_never_released")).await;
    assert_eq!(missing.code, "42883", "a missing one is seen: {missing:?}");
    let script = script();
    let is_symbol = |word: &&str| {
        let mut letters = word.chars();
        word.starts_with("pg_once_") && letters.all(|c| c.is_ascii_lowercase() || c == '_')
    };
    let named: BTreeSet<&str> = script.split('\'').filter(is_symbol).collect();
    assert!(named.len() > 60, "{named:?}");
    for symbol in named {
        play.show(&create(symbol)).await;
    }
}

#[tokio::test]
async fn a_released_function_keeps_its_arguments_defaults_and_columns() {
    const SHAPES: &str = "select oid::regprocedure, prokind, pg_get_function_arguments(oid), pg_get_function_result(oid), proretset
           from pg_proc where pronamespace = 'once'::regnamespace order by 1";
    let (released, next) = (old().await, fresh().await);
    let next = next.show(SHAPES).await;
    let next: BTreeSet<&str> = next.lines().collect();
    for shape in released.show(SHAPES).await.lines() {
        assert!(next.contains(shape), "{shape}");
    }
}
