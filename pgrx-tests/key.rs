//! In-database tests of the noun `key`.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    #[pg_test]
    fn the_first_claim_is_claimed() {
        let outcome = Spi::get_one::<String>("SELECT outcome FROM once.key_claim('s', 'k')");
        assert_eq!(outcome, Ok(Some("claimed".into())));
    }
}
