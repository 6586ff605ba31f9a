#!/usr/bin/env bash
# make test-assert: the end-to-end tests on a PostgreSQL 15 with assertions. Debian's source is built once (a few
# minutes) with --enable-cassert, and the extension is installed in the dev profile. Every test must pass, and
# the log of every server that a test started must be free of failed assertions, PANIC and leaks. At the end of every
# test amcheck and pg_visibility check each table and index of its databases (tests/src/pages.rs); the program `pages`
# has a standby with wal_consistency_checking.
# Arguments: those of cargo test, such as --test keys; without any, all programs run.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh
. tests/scripts/e2e.sh

VERSION=15
SERVER=$STATE/assert
CONFIG=$SERVER/bin/pg_config
LOGS=$STATE/assert-logs
# A failed assertion; a PANIC; the server's warnings about a resource that a transaction did not release.
COMPLAINTS='TRAP:|PANIC:|WARNING: .*(leak|still active|not closed|still referenced)'

# The newest of Debian's sources that can be downloaded: a mirror may list versions whose files it does not have yet.
get_source() {
    local work=$1 mirror release version lines=()
    while read -r mirror release; do
        lines+=("deb-src $SIGNED $mirror $release main")
    done < <(debian_mirrors)
    [ "${#lines[@]}" -gt 0 ] || die "this machine has no Debian mirror that could have PostgreSQL's source"
    apt_aside "$work" "${lines[@]}" || die "the package lists of Debian's sources could not be downloaded"
    cd "$work"
    export APT_CONFIG=$work/conf
    for version in $(apt-cache showsrc "postgresql-$VERSION" | sed -n 's/^Version: //p' | sort -Vru); do
        note "downloading Debian's source of PostgreSQL $version"
        rm -f postgresql-*
        if apt-get source -qq --download-only "postgresql-$VERSION=$version"; then
            mkdir source
            tar -xf postgresql-"$VERSION"_*.orig.tar.* -C source --strip-components 1
            return
        fi
    done
    die "none of them could be downloaded; see above"
}

# Builds the server with the modules of contrib that the checks of pages need (PG_ONCE_PAGES).
build_server() {
    local work=$STATE/assert-build module
    apt_install libicu-dev zlib1g-dev pkg-config || note "building with the present libraries"
    (get_source "$work")
    rm -rf "$SERVER"
    (
        cd "$work/source"
        # Debian's patches are not applied; most of them concern paths. -O1 halves the time of a build, and keeps locals
        # in a stack trace.
        CFLAGS="-O1 -g -fno-omit-frame-pointer" ./configure --quiet --prefix "$SERVER.new" --enable-cassert \
            --with-icu --without-readline
        for module in . contrib/amcheck contrib/pg_visibility; do
            # PostgreSQL's make generates its headers only if MAKELEVEL is 0 or unset.
            env -u MAKELEVEL -u MAKEFLAGS nice make --silent -C "$module" -j "$(nproc)" install || exit
        done
    ) >"$work/log" 2>&1 || die "PostgreSQL with assertions cannot be built" "$(tail -20 "$work/log")"
    mv "$SERVER.new" "$SERVER"
    rm -rf "$work"
}

need_assert_server() {
    if [ -x "$CONFIG" ]; then
        note "$("$CONFIG" --version) with assertions is in ${SERVER#"$ROOT"/}"
    else
        build_server
    fi
}

say "Setting up"
need_rust
need_c_toolchain
need_cargo_pgrx
need_assert_server
say "The extension"
install_extension "$CONFIG" dev

say "End-to-end tests"
rm -rf "$LOGS"
mkdir -p "$LOGS"
begin=$SECONDS failed=
(PG_ONCE_PAGES=1 PG_ONCE_KEEP_LOGS=$LOGS PG_ONCE_POOLER=0 run_e2e "$CONFIG" "$CONFIG" "$@") || failed=1
note "$((SECONDS - begin)) s, $(find "$LOGS" -type f | wc -l) servers"

say "The logs of the servers"
if grep -rEn "$COMPLAINTS" "$LOGS"; then
    die "a server logged an error of its own; the logs stay in $LOGS"
fi
note "no failed assertion, no PANIC, no leak"
if [ -n "$failed" ]; then die "tests failed; see above. The logs stay in $LOGS"; fi
rm -rf "$LOGS"
