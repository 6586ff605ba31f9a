#!/usr/bin/env bash
# make demo, make bench: sets up, installs a release build into a private server, and runs one of
# the programs of tests/ on it: `program.sh demo|bench [arguments of the program]`.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh
. tests/scripts/pgmq.sh

program=$1
shift
say "Setting up (the first time takes minutes, mostly for compiling)"
need_rust
need_c_toolchain
need_cargo_pgrx
need_any_server
if [ "$program" = bench ]; then need_pgmq; else need_pgbouncer "the demo leaves out its story of growth"; fi
say "Building and installing the extension into the private PostgreSQL $CHOSEN"
install_extension "$CHOSEN_PG_CONFIG"
say "Building the programs"
cargo build --quiet --profile programs --package pg-once --all-features --examples
cargo build --quiet --profile programs --package pg-once-programs --bins
say "Running the $program"
export PG_ONCE_PG_CONFIG=$CHOSEN_PG_CONFIG
mkdir -p "$ROOT/target/$program"
exec cargo run --quiet --profile programs --package pg-once-programs --bin "$program" -- "$@"
