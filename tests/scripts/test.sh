#!/usr/bin/env bash
# make test: lints, unit, in-database and end-to-end tests, the client's tests, doctests and examples, on the
# first of 15, 16 and 18 that is available. PG_VERSIONS names others; CI takes 15. Prints a line for each part with its
# time, and a table at the end. Arguments: the parts wanted (lint unit db e2e client); without any, all of them.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/suite.sh

if [ $# -gt 0 ]; then want "$@"; else want lint unit db e2e client; fi

choose_versions() {
    local version
    if [ -n "${PG_VERSIONS:-}" ] || is_ci; then
        # shellcheck disable=SC2086
        take_versions ${PG_VERSIONS:-15}
        return
    fi
    for version in $ALWAYS_VERSIONS; do
        if need_server "$version"; then
            VERSIONS=("$version")
            return
        fi
    done
    die "no PostgreSQL server with headers could be had" "Run: sudo apt-get install $(server_packages 15)"
}

say "Setting up"
setup
choose_versions
note "testing on PostgreSQL: ${VERSIONS[*]}"

if wanted lint; then part "formatting and lints" env PG_VERSIONS="${VERSIONS[0]}" bash tests/scripts/lint.sh; fi
if wanted unit || wanted e2e || wanted client; then
    part "build of the tests" cargo test --no-run --quiet "${BOTH[@]}"
fi
if wanted unit; then part "unit tests of the client" cargo test --quiet "${BOTH[@]}" --lib; fi
for version in "${VERSIONS[@]}"; do
    if wanted db; then part "in-database tests, PostgreSQL $version" db_tests "$version"; fi
    # The in-database tests leave a build of their own in the server; this installation replaces it.
    if wanted e2e || wanted client; then built "$version" dev; fi
    if wanted e2e; then
        part "the install and upgrade scripts" bash tests/scripts/pgspot.sh "$CARGO_TARGET_DIR/stage/$version/extension"
        # Only the matrix has the second server that the program `shards` needs.
        E2E_WITHOUT=shards part "end-to-end tests, PostgreSQL $version" e2e_tests "$version"
    fi
    if wanted client; then part "the client's tests, doctests and examples, PostgreSQL $version" client_tests "$version"; fi
done
summary
