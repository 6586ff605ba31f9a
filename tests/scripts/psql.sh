#!/usr/bin/env bash
# make psql: psql in a private cluster that has the extension. `psql.sh stop` stops the cluster.
# The cluster's data stay between calls. All other arguments go to psql: `psql.sh -c 'select 1'`.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh
. tests/scripts/cluster.sh

if [ "${1:-}" = stop ]; then
    for version in $KNOWN_VERSIONS; do
        config=$(private_pg_config "$version")
        if [ -x "$config" ]; then cluster_stop "psql-$version" "$config"; fi
    done
    exit
fi

say "A shell in a private PostgreSQL"
need_any_server
bin=$("$CHOSEN_PG_CONFIG" --bindir)
if [ ! -e "$("$CHOSEN_PG_CONFIG" --sharedir)/extension/pg_once.control" ]; then
    need_rust
    need_c_toolchain
    need_cargo_pgrx
    install_extension "$CHOSEN_PG_CONFIG"
fi
name=psql-$CHOSEN
cluster_start "$name" "$CHOSEN_PG_CONFIG"
export PGHOST=$CLUSTER_SOCKETS PGPORT=$CLUSTER_PORT PGUSER=postgres PGDATABASE=postgres
"$bin/psql" -X -q -c 'set client_min_messages = warning' -c 'create extension if not exists pg_once'
note "PostgreSQL $CHOSEN in $(cluster_directory "$name"), extension pg_once created (\\df+ once.* lists it)"
note "The server keeps running; stop it with: make psql-stop. To try changed code: make install PG_CONFIG=$CHOSEN_PG_CONFIG"
exec "$bin/psql" "$@"
