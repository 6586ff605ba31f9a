# shellcheck shell=bash
# pgmq's SQL, for comparing pgmq with the outbox in the benchmark. Sourced after toolchain.sh.
#
# The SQL is part of the Python package pgmq, unpacked under target/tools. Without it the benchmark skips pgmq.

# This version of the package has the SQL of pgmq 1.13.0.
PGMQ_PACKAGE=pgmq==1.1.4
PGMQ_WHEEL_SHA256=4d9e7aa517295669d46a11d3d13106efbdc738d0e127d84c567b6d4c936e7d1d
PGMQ_SHA256=bf7e66c75ed771df0c5f7cb2b9f0123ca77992daacd56e3911d1894a3efa99de

need_pgmq() {
    local file=$TOOLS/pgmq/pgmq/sql/pgmq.sql
    if is_pgmq "$file"; then return; fi
    note "downloading pgmq's SQL (a Python wheel) into target/tools"
    if ! wheel "$PGMQ_PACKAGE" "$TOOLS/pgmq" "$PGMQ_WHEEL_SHA256"; then
        warn "pgmq is left out: its package could not be downloaded"
        return
    fi
    if ! is_pgmq "$file"; then
        rm -rf "$TOOLS/pgmq"
        warn "pgmq is left out: the downloaded SQL does not have the expected checksum ($PGMQ_PACKAGE, $PGMQ_SHA256)"
    fi
}

is_pgmq() {
    [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$PGMQ_SHA256" ]
}
