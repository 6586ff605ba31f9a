#!/usr/bin/env bash
# make test-long: the full forms of slow tests (`make test` has short forms of teardown, kills, nothing_lost, metrics).
# Prints the time of each part. Needs hours rather than minutes, 30 GB of disk, and a machine that does nothing else.
#   - teardown: every interleaving of a worker, an endpoint that cancels and a sweep, at all three isolation levels;
#   - 100 kills of backends, the worker and the postmaster under a mixed load of everything;
#   - ten failovers under load; a dump of ten million rows under load; pg_upgrade by copying and by links;
#   - 16 shards that are split and moved; in each step, the script and the source cluster are killed;
#   - metrics() among ten million keys and ten million past events;
#   - reaping a million expired keys of ten million: at most 0.5 GB of WAL and 20 s of CPU; the claims that
#     run meanwhile have at least 0.8 of the usual speed, and at most twice the usual p99;
#   - counters: the server counts the claims of one database, and not the claims of two others. Over 20 rounds, counting
#     costs at most as much speed as the noise, which is the difference between the two others;
#   - the janitor of sixteen idle databases: at most 0.5 % of a core;
#   - faults: every function under cancels, kills and changes of the tables, for 25 minutes or 300,000 transactions; a
#     disk that runs full twenty times (as root); a network that is cut in six ways at each message of a client;
#   - the end-to-end tests on a server that is built with assertions (test-assert.sh).
# Arguments: the parts wanted (teardown kills nothing_lost shards metrics faults reaping counters idle assert); without
# any, all.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh
. tests/scripts/parts.sh

if [ $# -gt 0 ]; then want "$@"; else want teardown kills nothing_lost shards metrics faults reaping counters idle assert; fi

# One test program in its long form; it prints its progress.
long_test() {
    local more=()
    # The tests of `faults` are ignored by default.
    if [ "$1" = faults ]; then more=(--ignored); fi
    PG_ONCE_LONG=1 PG_ONCE_PG_CONFIG=$CHOSEN_PG_CONFIG PG_ONCE_OLD_PG_CONFIG=$OLD_PG_CONFIG \
        cargo test --package pg-once-tests --test "$1" -- --nocapture --test-threads=1 "${more[@]}"
}

# `bench_of NAME arguments ...`: runs the benchmark, with results under NAME; fails if a limit is exceeded.
bench_of() {
    local out=target/bench/long/$1
    shift
    mkdir -p "$out"
    PG_ONCE_PG_CONFIG=$CHOSEN_PG_CONFIG cargo run --quiet --profile programs --package pg-once-programs --bin bench -- \
        "$@" --out "$out"
}

say "Setting up"
need_rust
need_c_toolchain
need_cargo_pgrx
need_any_server
OLD_PG_CONFIG=$CHOSEN_PG_CONFIG
if [ "$CHOSEN" != 15 ] && need_server 15; then OLD_PG_CONFIG=$(private_pg_config 15); fi
note "PostgreSQL $CHOSEN, upgraded from $("$OLD_PG_CONFIG" --version); $(git rev-parse --short HEAD 2>/dev/null || echo "no commit")"
say "Release builds"
install_extension "$CHOSEN_PG_CONFIG" release
if [ "$OLD_PG_CONFIG" != "$CHOSEN_PG_CONFIG" ]; then install_extension "$OLD_PG_CONFIG" release; fi

for name in teardown kills nothing_lost shards metrics faults; do
    if wanted "$name"; then part "$name, the long form" long_test "$name"; fi
done
if wanted reaping; then
    part "claims beside reaping 1 million of 10 million keys" bench_of reaping --reap-among 10000000
fi
if wanted counters; then
    part "claims that are counted beside claims that are not" bench_of counters --only counters --rounds 20
fi
if wanted idle; then
    part "the janitor of sixteen idle databases" bench_of idle --only idle
fi
if wanted assert; then
    part "the end-to-end tests on a server with assertions" bash tests/scripts/test-assert.sh
fi

summary "$(nproc) cores, PostgreSQL $CHOSEN"
