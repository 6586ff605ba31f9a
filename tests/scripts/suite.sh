# shellcheck shell=bash
# What `make test` and `make test-matrix` share: getting what they need, and the tests of one server version. Sourced
# after lib.sh.
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh
. tests/scripts/cluster.sh
. tests/scripts/e2e.sh
. tests/scripts/parts.sh

setup() {
    need_rust
    need_c_toolchain
    need_cargo_pgrx
    # Some end-to-end tests connect through PgBouncer; with POOLED=1, most end-to-end tests and the client's tests do.
    need_pgbouncer "tests through a pooler cannot run"
    # The tests of metrics load the alert rules with Prometheus, and scrape a database with both exporters.
    local watchers=(prometheus prometheus-postgres-exporter prometheus-sql-exporter)
    if ! have promtool || ! have "${watchers[0]}" || ! have "${watchers[1]}" || ! have "${watchers[2]}"; then
        apt_install "${watchers[@]}" ||
            note "so that the alert rules are tested, too: sudo apt-get install ${watchers[*]}"
    fi
    if is_root && wanted db; then
        have sudo || apt_install sudo || die "cargo pgrx test needs sudo when root runs it" "Run: apt-get install sudo"
    fi
}

# `take_versions version ...` sets VERSIONS to the versions that are available. Under CI, or when PG_VERSIONS names
# them, none may be missing.
take_versions() {
    local version
    VERSIONS=()
    for version in "$@"; do
        if need_server "$version"; then
            VERSIONS+=("$version")
        elif is_ci || [ -n "${PG_VERSIONS:-}" ]; then
            die "PostgreSQL $version is asked for and cannot be had; see above"
        else
            left_out "PostgreSQL $version: sudo apt-get install $(server_packages "$version")"
        fi
    done
}

# The in-database tests. pgrx needs a data directory that the server's user may write to.
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

# `built version profile`: builds the extension in that profile, and installs it into the private server.
built() { part "build ($2) and install, PostgreSQL $1" install_extension "$(private_pg_config "$1")" "$2"; }

# `e2e_tests version [--test name ...]`; with POOLED=1 their sessions go through PgBouncer in transaction mode, except
# where a test asks for a session of its own. Tests of pg_upgrade upgrade a server of the oldest version to `version`.
e2e_tests() {
    local config
    config=$(private_pg_config "$1")
    shift
    PG_ONCE_POOLER=${POOLED:-0} run_e2e "$config" "$(private_pg_config "${OLDEST:-${VERSIONS[0]}}")" "$@"
}

# An example that serves until it is stopped is only compiled here; the demo runs it.
is_service() { grep -rq 'SignalKind::terminate' "$1"; }

# The examples mostly wait, so all run at once, each in its own database. quickstart connects to `$3`, which may be a
# pooler. The others connect to the server, because their search_path and prepared statements belong to a session.
run_examples() {
    local address=$1 psql=$2 pooled=$3 way example name told running=() failed=0
    told=$(mktemp -d "$STATE/run/XXXXXX")
    for example in client/examples/*; do
        # common/ is no example.
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
    if [ "${POOLED:-0}" = 1 ]; then
        pooler_start examples 100
        way=postgresql://postgres@127.0.0.1:$POOLER_PORT
        export PG_ONCE_DIRECT_URL=$address/examples
    fi
    export PG_ONCE_URL=$way/examples
    # One of the client's tests runs an example.
    cargo build --quiet "${BOTH[@]}" --examples
    RUST_TEST_THREADS=$(test_threads) cargo test --quiet "${BOTH[@]}" --test client
    # sqlx uses named prepared statements, so it is tested without PgBouncer.
    [ "${POOLED:-0}" = 1 ] || PG_ONCE_DRIVER=sqlx RUST_TEST_THREADS=$(test_threads) cargo test --quiet "${BOTH[@]}" \
        --test client
    cargo test --quiet "${BOTH[@]}" --doc
    run_examples "$address" "$psql" "$way"
    cluster_verified "$("$config" --bindir)"
}

