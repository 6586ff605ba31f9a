#!/usr/bin/env bash
# make test-package: the packages, as a user gets them. The tarball is installed by the commands of its INSTALL into a
# copy of a private server without pg_once. As root on Debian, the Debian package is installed into Debian's own server,
# used, upgraded beside an open session, and removed without remains.
#
# The test of the Debian package makes a cluster of its own, and always removes cluster and package at the end. It
# refuses to run on a machine with the extension installed.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh
. tests/scripts/deb.sh
. tests/scripts/cluster.sh

OUT=$ROOT/target/package

# `expect "what" "wanted" "got"`: `got` must contain `wanted`.
expect() {
    case $3 in
        *"$2"*) note "$1: $2" ;;
        *) die "$1: wanted '$2'" "got: $3" ;;
    esac
}

# `must command ...`: runs the command. Its failure ends the test, and is shown.
must() {
    local said
    said=$("$@") || die "this failed: ${*: -1}" "$said"
    echo "$said"
}

# FINISH claims and completes a user's first request; CLAIM must replay the same answer later.
CLAIM="select outcome, response_code from once.key_claim('orders.create', 'k-1', '{\"item\": \"book\"}')"
FINISH="select once.key_complete('orders.create', 'k-1', token, 201, '{\"order\": 1}') from once.key_claim('orders.create', 'k-1', '{\"item\": \"book\"}')"

# The tarball ---------------------------------------------------------------------------------------

test_tarball() {
    local version=$1 source name bare=$STATE/bare
    name=pg_once-$(pg_once_version)-pg$version-$(uname -m)
    source=$(private_pg_config "$version")
    PG_CONFIG=$source bash tests/scripts/package.sh tarball
    bare_server "$source" "$bare"
    rm -rf "$OUT/unpacked"
    mkdir "$OUT/unpacked"
    tar -C "$OUT/unpacked" -xzf "$OUT/$name.tar.gz"
    follow_install "$OUT/unpacked/$name" "$bare" cp
    cluster_remove bare "$bare/pg_config"
    # shellcheck disable=SC2064
    trap "cluster_remove bare '$bare/pg_config'; rm -rf '$bare' '$OUT/unpacked'" EXIT
    cluster_start bare "$bare/pg_config" "fsync = off"
    export PGHOST=$CLUSTER_SOCKETS PGPORT=$CLUSTER_PORT PGUSER=postgres PGDATABASE=postgres
    ask() { "$("$bare/pg_config" --bindir)/psql" -X -At -v ON_ERROR_STOP=1 -c "$1" 2>&1; }
    must ask 'create extension pg_once' >/dev/null
    expect "created from the tarball" "$(pg_once_version)" "$(ask "select extversion from pg_extension where extname = 'pg_once'")"
    must "$OUT/unpacked/$name/doc/examples/shards/shards.sh" --help >/dev/null
    must ask "$FINISH" >/dev/null
    expect "a finished request" 'replayed|201' "$(ask "$CLAIM")"
    follow_install "$OUT/unpacked/$name" "$bare" rm
    [ -z "$(find "$bare" -name 'pg_once*')" ] || die "INSTALL's removal left files"
    note "no file is left after INSTALL's removal"
}

# `follow_install directory server program`: runs the commands of INSTALL that begin with the program.
follow_install() {
    (cd "$1" && sed -n "s/^    \($3 .*\)/\1/p" INSTALL | PATH=$2:$PATH bash -e)
}

# A copy of a private server without any file of pg_once.
bare_server() {
    rm -rf "$2"
    cp -a "$(dirname "$1")" "$2"
    find "$2" -name 'pg_once*' -delete
}

# The Debian package --------------------------------------------------------------------------------

as_postgres() { setpriv --reuid postgres --regid "$(id -g postgres)" --init-groups -- "$@"; }

ask_debian() {
    (cd / && as_postgres psql -X -At -v ON_ERROR_STOP=1 -h /var/run/postgresql -p "$PORT" -d "$1" -c "$2" 2>&1)
}

clean_debian() {
    exec 7>&- 8<&- || true
    pg_dropcluster --stop "$MAJOR" "$CLUSTER" >/dev/null 2>&1 || true
    dpkg --purge "$PACKAGE" >/dev/null 2>&1 || true
    rm -rf "$WORK"
}

# The package before this one: the same files under a smaller version. (Nothing was released yet, so there is no older
# schema to update; tests/e2e/upgrade updates to a made-up version.)
make_older_deb() {
    local version
    version=$(pg_once_version)-0
    DEB_VERSION=$version make_deb "$MAJOR" "$STAGE" "$WORK"
    OLDER=$WORK/$(DEB_VERSION=$version deb_file "$MAJOR")
}

check_with_lintian() {
    if ! have lintian && ! apt_install lintian; then
        note "NOT CHECKED: lintian is missing: sudo apt-get install lintian"
        return
    fi
    # Our package is not uploaded to Debian, so it closes no bug there.
    lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$1"
    note "lintian: nothing found"
}

start_cluster() {
    PORT=$(free_port)
    pg_createcluster "$MAJOR" "$CLUSTER" --port "$PORT" --start-conf manual --locale C.UTF-8 \
        -o listen_addresses= -o fsync=off >/dev/null
    printf 'local all postgres peer\n' >"/etc/postgresql/$MAJOR/$CLUSTER/pg_hba.conf"
    pg_ctlcluster --skip-systemctl-redirect "$MAJOR" "$CLUSTER" start
    must ask_debian postgres 'create database shop' >/dev/null
}

restart() { pg_ctlcluster --skip-systemctl-redirect "$MAJOR" "$CLUSTER" restart; }

test_upgrade() {
    expect "created from the older package" "$(pg_once_version)" "$(ask_debian shop "create extension pg_once; select extversion from pg_extension where extname = 'pg_once'")"
    must ask_debian shop "$FINISH" >/dev/null
    mkfifo "$WORK/in" "$WORK/out"
    (cd / && exec setpriv --reuid postgres --regid "$(id -g postgres)" --init-groups -- \
        psql -X -At -h /var/run/postgresql -p "$PORT" -d shop <"$WORK/in" >"$WORK/out" 2>&1) &
    exec 7>"$WORK/in" 8<"$WORK/out"
    tell_session "$CLAIM;"
    expect "a session before the upgrade" 'replayed|201' "$ANSWER"

    dpkg --install "$OUT/$(deb_file "$MAJOR")" >/dev/null
    expect "the upgraded package" "$(pg_once_version)" "$(dpkg-query -W -f '${Version}' "$PACKAGE")"
    tell_session "$CLAIM;"
    expect "that session after the package's upgrade" 'replayed|201' "$ANSWER"
    expect "a new session" 'replayed|201' "$(ask_debian shop "$CLAIM")"
    exec 7>&- 8<&-
}

# The steps of a user without an older version.
test_creation() {
    must ask_debian postgres 'create database fresh' >/dev/null
    must ask_debian fresh 'create extension pg_once' >/dev/null
    must "/usr/share/doc/$PACKAGE/examples/shards/shards.sh" --help >/dev/null
    expect "created from the package" "$(pg_once_version)" "$(ask_debian fresh "select extversion from pg_extension where extname = 'pg_once'")"
    must ask_debian fresh "$FINISH" >/dev/null
    expect "a finished request there" 'replayed|201' "$(ask_debian fresh "$CLAIM")"
}

moves_done() { ask_debian fresh "select count(*) from job where status = 'done'"; }

# Debian's pg_repack copies a state machine's table during transitions: each of 20,000 rows moves once, none is lost.
test_repack() {
    local part move before after
    if [ ! -x "/usr/lib/postgresql/$MAJOR/bin/pg_repack" ] && ! apt_install "postgresql-$MAJOR-repack"; then
        note "NOT CHECKED: pg_repack is missing: sudo apt-get install postgresql-$MAJOR-repack"
        return
    fi
    must ask_debian fresh "create extension pg_repack; create table job (id int primary key, status text not null);
        insert into job select i, 'queued' from generate_series(1, 20000) i;
        select once.machine_define('{\"machine\": \"job\", \"table\": \"public.job\", \"id\": \"id\", \"status\": \"status\",
            \"status_types\": [\"queued\", \"done\"], \"terminal\": [\"done\"],
            \"transitions\": [{\"from\": [\"queued\"], \"to\": \"done\"}]}'), once.machine_guard('job', true)" >/dev/null
    for part in 0 1; do
        move="do \$\$ begin for i in 1..10000 loop perform once.transition('job', $((part * 10000)) + i, 'done'); commit; end loop; end \$\$"
        must ask_debian fresh "$move" >/dev/null &
    done
    before=$(moves_done)
    (cd / && as_postgres "/usr/lib/postgresql/$MAJOR/bin/pg_repack" --no-kill-backend -h /var/run/postgresql \
        -p "$PORT" -d fresh -t job) >/dev/null 2>&1 || die "pg_repack failed beside moves"
    after=$(moves_done)
    wait
    [ "$before" -lt "$after" ] || die "no row moved while pg_repack ran" "$before rows before, $after after it"
    expect "moves beside pg_repack" '20000|20000' "$(ask_debian fresh "select count(*) filter (where status = 'done'), count(*) from job")"
    expect "violations of what must hold" '0' "$(ask_debian fresh 'select count(*) from once.verify()')"
}

# Sends a line to the open session and reads a line.
tell_session() {
    echo "$1" >&7
    read -r -t 60 ANSWER <&8 || die "the open session did not answer" "$1"
}

test_removal() {
    local log=/var/log/postgresql/postgresql-$MAJOR-$CLUSTER.log said status=0
    must ask_debian postgres "alter system set shared_preload_libraries = 'pg_once'" >/dev/null
    restart
    expect "preloaded" 'replayed|201' "$(ask_debian shop "$CLAIM")"

    said=$(dpkg --remove "$PACKAGE" 2>&1)
    expect "what the removal says" "cluster $MAJOR/$CLUSTER has pg_once in shared_preload_libraries" "$said"
    dpkg --purge "$PACKAGE" >/dev/null 2>&1 || true
    said=$(ours_on_disk)
    [ -z "$said" ] || die "the package left files" "$said"
    note "no file is left"
    restart >/dev/null 2>&1 || status=$?
    [ "$status" != 0 ] || die "the server started without a library that it preloads"
    expect "a server that preloads it" 'could not access file "pg_once"' "$(tail -5 "$log")"
    rm "/var/lib/postgresql/$MAJOR/$CLUSTER/postgresql.auto.conf"
    restart
    said=$(ask_debian shop "$CLAIM" || true)
    # shellcheck disable=SC2016 # the server's own text
    expect "a call in a database that still has it" 'could not access file "$libdir/pg_once"' "$said"
    must ask_debian shop 'drop extension pg_once' >/dev/null
    expect "what a DROP leaves in the database" '0' "$(ask_debian shop "select count(*) from pg_namespace where nspname = 'once'")"
}

test_deb() {
    MAJOR=$1 PACKAGE=$(deb_name "$1") WORK=$ROOT/target/package/test
    STAGE=$CARGO_TARGET_DIR/stage/package-$MAJOR
    [ -z "$(ours_on_disk)" ] ||
        die "pg_once is installed on this machine, and this test would replace and remove it" "$(ours_on_disk)"
    PG_CONFIG=/usr/lib/postgresql/$MAJOR/bin/pg_config bash tests/scripts/package.sh deb
    check_with_lintian "$OUT/$(deb_file "$MAJOR")"
    trap clean_debian EXIT
    pg_dropcluster --stop "$MAJOR" "$CLUSTER" >/dev/null 2>&1 || true
    rm -rf "$WORK"
    mkdir -p "$WORK"
    make_older_deb
    dpkg --install "$OLDER" >/dev/null
    start_cluster
    test_upgrade
    test_creation
    test_repack
    test_removal
}

need_rust >/dev/null
need_c_toolchain >/dev/null
need_cargo_pgrx
case ${1:-} in
    tarball) test_tarball "$2" ;;
    deb) test_deb "$2" ;;
    *) die "test_package.sh needs the kind of package and the server version, such as: tarball 15 (or deb 15)" ;;
esac
