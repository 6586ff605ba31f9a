#!/usr/bin/env bash
# make lint: formatting, clippy, shellcheck, pgspot and the client's documentation. All of them run; any finding fails.
# `lint.sh extension`: clippy of the extension alone, for the version that PG_VERSIONS names; `lint.sh bare`: clippy of
# the client without its optional features and their dependencies.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh

need_rust >/dev/null
need_c_toolchain >/dev/null
need_any_server >/dev/null
findings=()

# `check "name" command ...`
check() {
    local name=$1
    shift
    say "$name"
    "$@" || findings+=("$name")
}

# A linked toolchain may lack `cargo fmt`; then `cargo fmt` of the toolchain `stable` is used.
format_check() {
    local toolchain=${RUSTUP_TOOLCHAIN:-}
    if ! cargo fmt --version >/dev/null 2>&1; then toolchain=stable; fi
    # Prints the names of files only; `cargo fmt --all` mends them.
    env ${toolchain:+RUSTUP_TOOLCHAIN="$toolchain"} cargo fmt --all --check -- -l
}

clippy() {
    cargo clippy --version >/dev/null 2>&1 || apt_install rust-web-clippy ||
        die "clippy is missing" "Run: rustup component add clippy" "or: sudo apt-get install rust-web-clippy"
    cargo clippy --quiet "$@" -- -D warnings
}

clippy_extension() {
    pgrx_env "$CHOSEN" "$CHOSEN_PG_CONFIG"
    clippy --package pg_once --tests --no-default-features --features "pg$CHOSEN pg_test"
}

shell_check() {
    if ! have shellcheck && ! apt_install shellcheck; then
        note "NOT CHECKED: shellcheck is missing: sudo apt-get install shellcheck"
        if is_ci; then return 1; else return 0; fi
    fi
    shellcheck -x tests/scripts/*.sh sql/examples/shards/*.sh .ci/run
}

case ${1:-} in
    extension) clippy_extension ;;
    bare) clippy --package pg-once --lib ;;
esac
if [ $# -gt 0 ]; then exit; fi
check "Formatting (these files differ from what 'cargo fmt --all' makes of them)" format_check
check "Shell scripts" shell_check
check "The install and upgrade scripts" bash tests/scripts/pgspot.sh
# `--lib --bins --examples --tests` is `--all-targets` without `--benches`. With `--benches` cargo would check the
# programs that have `test = false` a second time.
check "Clippy: the client and the tests" clippy "${BOTH[@]}" --lib --bins --examples --tests
check "Clippy: the extension (PostgreSQL $CHOSEN)" clippy_extension
# With `--example quickstart` cargo adds the dev-dependencies. Then the dependencies have the same features as for
# clippy above, and cargo does not check the dependencies again.
check "The client's documentation" env RUSTDOCFLAGS="-D warnings" \
    cargo doc --quiet --package pg-once --all-features --no-deps --lib --example quickstart

if [ "${#findings[@]}" != 0 ]; then die "findings in:" "${findings[@]}"; fi
note "no findings"
