#!/usr/bin/env bash
# make test: all checks on all server versions, a line for each part with its time, and a table at
# the end. Arguments: the parts wanted (lint unit db e2e client languages package); without any, all of them.
# Versions: PG_VERSIONS="15 18"; without it 15, 16, 18 and what else is on this machine, and then the
# oldest and the newest get every test and those between them the core of the end-to-end tests. On the newest
# of several the sessions of the end-to-end tests and of the client's go through PgBouncer in transaction mode.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh
. tests/scripts/cluster.sh
. tests/scripts/e2e.sh
. tests/scripts/languages.sh

parts=${*:-lint unit db e2e client languages package}
# What depends most on the server's version: table access, locks, isolation, crashes.
CORE="keys races machines outbox sweeps crash"
SUMMARY=()
FAILED=0
BEGIN=$SECONDS

wanted() { case " $parts " in *" $1 "*) ;; *) return 1 ;; esac }

# `part "name" command ...`: runs it, says how long it took; a failure is kept for the end.
part() {
    local name=$1 begin=$SECONDS status result=ok
    shift
    say "$name"
    # In a shell of its own, so that a failure inside ends the part and not the run. A condition
    # (`if (...)`) would switch `set -e` off in there.
    set +e
    (
        set -e
        "$@"
    )
    status=$?
    set -e
    if [ "$status" != 0 ]; then
        result=FAILED
        FAILED=1
    fi
    SUMMARY+=("$(printf '%-8s %5d s  %s' "$result" "$((SECONDS - begin))" "$name")")
    note "$result: $name, $((SECONDS - begin)) s"
}

setup() {
    need_rust
    need_c_toolchain
    need_cargo_pgrx
    # The end-to-end tests and the client's put a pooler between client and server.
    has_pgbouncer || apt_install pgbouncer ||
        note "pgbouncer is missing, so tests through a pooler cannot run: sudo apt-get install pgbouncer"
    # The tests of metrics load the alert rules and scrape a database with the real programs.
    local watchers=(prometheus prometheus-postgres-exporter prometheus-sql-exporter)
    if ! have promtool || ! have "${watchers[0]}" || ! have "${watchers[1]}" || ! have "${watchers[2]}"; then
        apt_install "${watchers[@]}" ||
            note "so that the alert rules are tested, too: sudo apt-get install ${watchers[*]}"
    fi
    if is_root && wanted db; then
        have sudo || apt_install sudo || die "cargo pgrx test needs sudo when root runs it" "Run: apt-get install sudo"
    fi
}

# Sets VERSIONS: what is wanted and can be had. Under CI, or when named, none may be missing.
choose_versions() {
    local version asked=${PG_VERSIONS:-$(default_versions)}
    VERSIONS=()
    for version in $asked; do
        if need_server "$version"; then
            VERSIONS+=("$version")
        elif is_ci || [ -n "${PG_VERSIONS:-}" ]; then
            die "PostgreSQL $version is asked for and cannot be had; see above"
        else
            left_out "PostgreSQL $version: sudo apt-get install $(server_packages "$version")"
        fi
    done
    [ "${#VERSIONS[@]}" -gt 0 ] || die "no PostgreSQL server with headers could be had"
    note "testing on PostgreSQL: ${VERSIONS[*]}"
}

# The test server's data; pgrx wants a directory that the server's user may write to.
db_tests() {
    local version=$1 data=$STATE/pgrx-tests runas=()
    rm -rf "$data"
    mkdir -p "$data"
    if is_root; then
        chown "$SERVER_USER" "$data"
        runas=(--runas "$SERVER_USER")
    fi
    pgrx_env "$version" "$(private_pg_config "$version")"
    cargo pgrx test "pg$version" --package pg_once --no-default-features "${runas[@]}" --pgdata "$data"
    rm -rf "$data"
}

# The oldest version is tested with the build that its packages hold, the others with the one that
# the in-database tests have made most of already, in which the compiler checks every sum and index.
profile_for() { if [ "$1" = "${VERSIONS[0]}" ]; then echo release; else echo dev; fi; }

# The release build takes minutes, most of them of one core, in a directory of its own: it runs beside
# the builds of the in-database tests, which leave a core idle, too (lints leave none). The part that installs it
# waits for cargo's lock, and says what was wrong.
release_ahead() {
    set -m
    stage_extension "$(private_pg_config "${VERSIONS[0]}")" release "$CARGO_TARGET_DIR/stage/ahead" >/dev/null 2>&1 </dev/null &
    AHEAD=$!
    set +m
    trap 'kill -- "-$AHEAD" 2>/dev/null || true' EXIT
}

# The extension is linted against the version that is compiled and not run, which is its build check; where
# that one is tested, or cannot be had, against one of those that are tested.
lints() {
    local against=$COMPILED_VERSION
    case " ${VERSIONS[*]} " in *" $against "*) against= ;; esac
    if [ -n "${PG_VERSIONS:-}" ]; then
        against=$PG_VERSIONS
    elif [ -n "$against" ] && ! need_server "$against"; then
        left_out "build check, PostgreSQL $against: its headers cannot be had"
        against=
    fi
    part "formatting and lints${against:+, compiled for PostgreSQL $against}" \
        env PG_VERSIONS="${against:-${VERSIONS[-1]}}" bash tests/scripts/lint.sh
}

# Every test of a version that was asked for by name, and of the oldest and the newest.
is_full() { [ -n "${PG_VERSIONS:-}" ] || [ "$1" = "${VERSIONS[0]}" ] || [ "$1" = "${VERSIONS[-1]}" ]; }

# Through PgBouncer in transaction mode, but for what a test says that it needs a session of its own for. The other
# full run goes directly. PG_ONCE_POOLER=1 (or 0) decides for all versions.
is_pooled() {
    if [ -n "${PG_ONCE_POOLER:-}" ]; then
        [ "$PG_ONCE_POOLER" != 0 ]
    else
        [ "$1" = "${VERSIONS[-1]}" ] && [ "$1" != "${VERSIONS[0]}" ] && { has_pgbouncer || is_ci; }
    fi
}

has_pgbouncer() { have pgbouncer || [ -x /usr/sbin/pgbouncer ]; }

e2e_tests() {
    local targets=() name pooled=0
    if ! is_full "$1"; then
        for name in $CORE; do targets+=(--test "$name"); done
    fi
    if is_pooled "$1"; then pooled=1; fi
    PG_ONCE_POOLER=$pooled run_e2e "$(private_pg_config "$1")" "$(private_pg_config "${VERSIONS[0]}")" "${targets[@]}"
}

e2e_name() {
    local name="end-to-end tests"
    if ! is_full "$1"; then name="the core of the $name"; fi
    if is_pooled "$1"; then name+=" through PgBouncer"; fi
    echo "$name"
}

# The server version for which Debian's package is tested: Debian's own here, of those tested.
deb_version_here() {
    local version
    for version in "${VERSIONS[@]}"; do
        if [ -x "/usr/lib/postgresql/$version/bin/pg_config" ] && have pg_createcluster; then
            echo "$version"
            return
        fi
    done
    return 1
}

left_out() { SUMMARY+=("$(printf '%-8s %5s    %s' "LEFT OUT" "" "$1")"); }

# Where no pooler was between: `left_out_pooler tests target`.
left_out_pooler() {
    if is_pooled "${VERSIONS[-1]}"; then return; fi
    if has_pgbouncer; then
        left_out "$1 through PgBouncer: PG_ONCE_POOLER=1 make $2"
    else
        left_out "$1 through PgBouncer: sudo apt-get install pgbouncer"
    fi
}

package_tests() {
    local version
    part "the tarball, PostgreSQL ${VERSIONS[0]}" bash tests/scripts/test_package.sh tarball "${VERSIONS[0]}"
    if ! version=$(deb_version_here); then
        left_out "the Debian package: sudo apt-get install $(server_packages 15)"
    elif ! is_root; then
        left_out "the Debian package: sudo make test-package"
    else
        part "the Debian package, PostgreSQL $version" bash tests/scripts/test_package.sh deb "$version"
    fi
}

# The languages that are here, or can be had; under CI that must be all.
languages() {
    local version language ready=()
    for language in $LANGUAGES; do
        if need_language "$language"; then
            ready+=("$language")
        elif is_ci; then
            part "examples in $language" die "what they need is missing; see above"
        else
            left_out "examples in $language: sudo apt-get install $(language_packages "$language")"
        fi
    done
    if [ "${#ready[@]}" = 0 ]; then return; fi
    for version in "${VERSIONS[@]}"; do
        if is_full "$version"; then
            part "examples in ${ready[*]}, PostgreSQL $version" language_tests "$version" "${ready[@]}"
        fi
    done
}

# An example that serves until it is stopped is only compiled here; the demo runs it.
is_service() { grep -rq 'SignalKind::terminate' "$1"; }

# They mostly wait, too: all at once, each in a database of its own. The first that a reader meets goes the way that
# `$3` is the address of; the others find their tables by a setting of the session, and what they ask the database
# themselves is prepared.
run_examples() {
    local address=$1 psql=$2 pooled=$3 way example name told running=() failed=0
    told=$(mktemp -d "$STATE/run/XXXXXX")
    for example in client/examples/*; do
        # What the examples share is none itself.
        [ -f "$example" ] || [ -f "$example/main.rs" ] || continue
        name=$(basename "$example" .rs)
        if is_service "$example"; then
            note "example $name: compiled"
            continue
        fi
        "$psql" -X -q -d "$address/postgres" -c "create database $name" -c "\\c $name" -c 'create extension pg_once'
        case $name in quickstart) way=$pooled ;; *) way=$address ;; esac
        PG_ONCE_URL=$way/$name timeout 120 "$CARGO_TARGET_DIR/debug/examples/$name" </dev/null >"$told/$name" 2>&1 &
        running+=("$name" $!)
    done
    set -- "${running[@]}"
    while [ $# -gt 0 ]; do
        note "example $1"
        wait "$2" || failed=1
        cat "$told/$1"
        shift 2
    done
    rm -rf "$told"
    return "$failed"
}

client_clean() {
    pooler_stop
    cluster_remove examples "$1"
}

client_tests() {
    local version=$1 config address psql way
    config=$(private_pg_config "$version")
    cluster_remove examples "$config"
    # shellcheck disable=SC2064
    trap "client_clean '$config'" EXIT
    cluster_start examples "$config" "listen_addresses = '127.0.0.1'" "fsync = off" "max_connections = 300"
    address=postgresql://postgres@127.0.0.1:$CLUSTER_PORT
    psql=$("$config" --bindir)/psql
    "$psql" -X -q -d "$address/postgres" -c 'create database examples' -c '\c examples' -c 'create extension pg_once'
    way=$address
    if is_pooled "$version"; then
        pooler_start examples 100
        way=postgresql://postgres@127.0.0.1:$POOLER_PORT
        export PG_ONCE_DIRECT_URL=$address/examples
    fi
    export PG_ONCE_URL=$way/examples
    RUST_TEST_THREADS=$(test_threads) cargo test --quiet --package pg-once --test client
    cargo test --package pg-once --doc
    cargo build --quiet --package pg-once --examples
    run_examples "$address" "$psql" "$way"
}

client_name() {
    local name="the client's tests"
    if is_pooled "$1"; then name+=" through PgBouncer"; fi
    echo "$name, doctests and examples"
}

summary() {
    say "Summary ($(((SECONDS - BEGIN) / 60)) min $(((SECONDS - BEGIN) % 60)) s)"
    printf '    %s\n' "${SUMMARY[@]}"
    if [ "$FAILED" = 0 ]; then note "all passed"; else die "something failed; see above"; fi
}

say "Setting up"
setup
choose_versions

if wanted lint; then lints; fi
if wanted unit; then part "unit tests of the client" cargo test --package pg-once --lib; fi
if wanted db; then
    if wanted e2e || wanted client || wanted languages; then release_ahead; fi
    for version in "${VERSIONS[@]}"; do
        if is_full "$version"; then part "in-database tests, PostgreSQL $version" db_tests "$version"; fi
    done
fi
if wanted e2e || wanted client || wanted languages; then
    if wanted e2e; then part "build of the end-to-end tests" cargo test --no-run --quiet --package pg-once-tests; fi
    # After the in-database tests, which leave a build of their own in the server. The release build comes last: what
    # is left of it goes on beside the others.
    for version in "${VERSIONS[@]:1}" "${VERSIONS[0]}"; do
        if ! wanted e2e && ! is_full "$version"; then continue; fi
        profile=$(profile_for "$version")
        part "build ($profile) and install, PostgreSQL $version" install_extension "$(private_pg_config "$version")" "$profile"
    done
    # What was built, not what lint put together; the same for all versions.
    part "the built install and upgrade scripts" bash tests/scripts/pgspot.sh "$CARGO_TARGET_DIR/stage/${VERSIONS[0]}/extension"
fi
if wanted e2e; then
    for version in "${VERSIONS[@]}"; do
        part "$(e2e_name "$version"), PostgreSQL $version" e2e_tests "$version"
    done
    left_out_pooler "end-to-end tests" test-e2e
fi
if wanted client; then
    for version in "${VERSIONS[@]}"; do
        if is_full "$version"; then
            part "$(client_name "$version"), PostgreSQL $version" client_tests "$version"
        fi
    done
    left_out_pooler "the client's tests" test-client
fi
if wanted languages; then languages; fi
if wanted package; then package_tests; fi
summary
