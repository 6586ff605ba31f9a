#!/usr/bin/env bash
# make lint: formatting, clippy, shellcheck and the client's documentation; any finding fails.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh

need_rust >/dev/null
need_c_toolchain >/dev/null
need_any_server >/dev/null

# Formatting need not be of the compiler's version: a linked toolchain may have no `cargo fmt`.
format_check() {
    if cargo fmt --version >/dev/null 2>&1; then
        cargo fmt --all --check
    elif have rustup && RUSTUP_TOOLCHAIN=stable cargo fmt --version >/dev/null 2>&1; then
        RUSTUP_TOOLCHAIN=stable cargo fmt --all --check
    else
        die "cargo fmt is missing" "Run: rustup component add rustfmt" "or: sudo apt-get install rustfmt-web"
    fi
}

clippy() {
    cargo clippy --version >/dev/null 2>&1 || apt_install rust-web-clippy ||
        die "clippy is missing" "Run: rustup component add clippy" "or: sudo apt-get install rust-web-clippy"
    cargo clippy --quiet "$@" --all-targets -- -D warnings
}

shell_check() {
    if ! have shellcheck && ! apt_install shellcheck; then
        if is_ci; then die "shellcheck is missing" "Run: apt-get install shellcheck"; fi
        note "NOT CHECKED: shell scripts (sudo apt-get install shellcheck)"
        return
    fi
    shellcheck -x tests/scripts/*.sh .ci/run
}

say "Formatting"
format_check
say "Shell scripts"
shell_check
say "Clippy: the client and the tests"
clippy --package pg-once --package pg-once-tests
say "Clippy: the extension (PostgreSQL $CHOSEN)"
pgrx_env "$CHOSEN" "$CHOSEN_PG_CONFIG"
clippy --package pg_once --no-default-features --features "pg$CHOSEN pg_test"
say "The client's documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --package pg-once --no-deps
note "no findings"
