# shellcheck shell=bash
# A named private cluster that shell scripts start and stop. Sourced after servers.sh. (Programs in
# Rust use the harness in tests/src instead, which also removes the clusters of a killed program.)

# The path of a unix socket has at most 107 bytes. The sockets are in the cluster's directory if their paths fit.
cluster_sockets() {
    if [ "${#1}" -lt 80 ]; then
        echo "$1/sockets"
    else
        echo "/tmp/pg_once-$(printf %s "$1" | cksum | cut -d' ' -f1)-s"
    fi
}

cluster_directory() { echo "$STATE/clusters/$1"; }

cluster_is_running() {
    [ -d "$1/data" ] && as_server_user "$(dirname "$2")/pg_ctl" status -D "$1/data" >/dev/null 2>&1
}

free_port() {
    local port
    for ((port = 32000 + RANDOM % 700; port < 32760; port++)); do
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return
        fi
    done
    die "no port is free between 32000 and 32760"
}

# `cluster_start name pg_config [setting ...]` sets CLUSTER_PORT and CLUSTER_SOCKETS. Unless a setting says otherwise,
# the cluster listens only on a unix socket that only the server's user can reach, because there are no passwords.
cluster_start() {
    local directory config=$2 bin
    directory=$(cluster_directory "$1")
    shift 2
    bin=$("$config" --bindir)
    CLUSTER_SOCKETS=$(cluster_sockets "$directory")
    if cluster_is_running "$directory" "$bin/pg_config"; then
        CLUSTER_PORT=$(cat "$directory/port")
        return
    fi
    mkdir -p "$directory" "$CLUSTER_SOCKETS"
    chmod 0700 "$CLUSTER_SOCKETS"
    if is_root; then chown "$SERVER_USER" "$directory" "$CLUSTER_SOCKETS"; fi
    if [ ! -s "$directory/data/PG_VERSION" ]; then
        note "making a cluster in ${directory#"$ROOT"/}"
        (cd "$directory" && as_server_user "$bin/initdb" --pgdata data --username postgres --auth trust \
            --encoding UTF8 --locale C.UTF-8 --no-sync >initdb.log 2>&1 </dev/null) ||
            die "initdb failed" "$(tail -5 "$directory/initdb.log")"
        printf '%s\n' "listen_addresses = ''" "$@" | as_server_user tee -a "$directory/data/postgresql.conf" >/dev/null
    fi
    CLUSTER_PORT=$(free_port)
    echo "$CLUSTER_PORT" >"$directory/port"
    (cd "$directory" && as_server_user "$bin/pg_ctl" start --wait --silent -D data -l "$directory/data/server.log" \
        -o "-p $CLUSTER_PORT -k $CLUSTER_SOCKETS" >/dev/null 2>&1 </dev/null) ||
        die "the server did not start" "$(tail -5 "$directory/data/server.log")"
}

# `cluster_stop name pg_config`
cluster_stop() {
    local directory
    directory=$(cluster_directory "$1")
    if cluster_is_running "$directory" "$("$2" --bindir)/pg_config"; then
        (cd "$directory" && as_server_user "$("$2" --bindir)/pg_ctl" stop --wait --silent -D data -m fast)
    fi
}

# `cluster_remove name pg_config`: stops it and deletes its data.
cluster_remove() {
    local directory
    directory=$(cluster_directory "$1")
    cluster_stop "$@" || true
    rm -rf "$directory" "$(cluster_sockets "$directory")"
}

# `cluster_verified bindir`: in the last started cluster, runs once.verify() in each database that has the extension.
# Fails if once.verify() finds anything.
cluster_verified() {
    local ask=("$1/psql" -X -At -h 127.0.0.1 -p "$CLUSTER_PORT" -U postgres) database found
    for database in $("${ask[@]}" -d postgres -c 'SELECT datname FROM pg_database WHERE datallowconn'); do
        found=$("${ask[@]}" -d "$database" -c "SELECT 1 FROM pg_extension WHERE extname = 'pg_once'")
        [ "$found" = 1 ] || continue
        found=$("${ask[@]}" -d "$database" -c 'SELECT * FROM once.verify()') || return
        if [ -n "$found" ]; then
            warn "once.verify() finds in $database: $found"
            return 1
        fi
    done
}

# `pooler_start name servers`: starts PgBouncer in transaction mode for the last started cluster, with up to `servers`
# server sessions for each role in each database. Sets POOLER_PORT; sets POOLER to the path of PgBouncer's pidfile.
pooler_start() {
    local directory program
    directory=$(cluster_directory "$1")
    program=$(command -v pgbouncer || echo /usr/sbin/pgbouncer)
    if [ ! -x "$program" ]; then
        note "NOT TESTED through a pooler: sudo apt-get install pgbouncer"
        if is_ci; then return 1; else return 0; fi
    fi
    POOLER_PORT=$(free_port)
    echo '"postgres" ""' >"$directory/users.txt"
    # pooler_stop reads PgBouncer's process id from this file: `$!` would be the id of a shell that runs PgBouncer.
    POOLER=$directory/pgbouncer.pid
    cat >"$directory/pgbouncer.ini" <<END
[databases]
* = host=127.0.0.1 port=$CLUSTER_PORT
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $POOLER_PORT
unix_socket_dir =
pidfile = $POOLER
auth_type = trust
auth_file = $directory/users.txt
auth_user = postgres
auth_query = select rolname, 'x' from pg_catalog.pg_roles where rolname = \$1
pool_mode = transaction
default_pool_size = $2
max_client_conn = 1000
server_idle_timeout = 10
ignore_startup_parameters = extra_float_digits
END
    as_server_user "$program" -q "$directory/pgbouncer.ini" >"$directory/pgbouncer.log" 2>&1 </dev/null &
    for _ in $(seq 100); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$POOLER_PORT") 2>/dev/null; then return; fi
        sleep 0.1
    done
    die "pgbouncer does not listen" "$(tail -5 "$directory/pgbouncer.log")"
}

pooler_stop() {
    if [ -s "${POOLER:-}" ]; then kill "$(cat "$POOLER")" || true; fi
}
