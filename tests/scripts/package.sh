#!/usr/bin/env bash
# make package [PG_CONFIG=...]: makes a tarball for one server version, with the library, the control and SQL files,
# monitoring files, documents and INSTALL. `package.sh deb`: makes a Debian package of the same files.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh
. tests/scripts/deb.sh

kind=${1:-tarball}

# The named server, else (for a Debian package) one of Debian's, else any.
choose_server() {
    if [ -n "${PG_CONFIG:-}" ]; then
        config=$PG_CONFIG
    elif [ "$kind" = deb ] && config=$(debian_server); then
        :
    else
        need_any_server
        config=$CHOSEN_PG_CONFIG
    fi
    version=$(major_version "$config")
    [ -n "$version" ] || die "$config cannot be run" "Run: make package PG_CONFIG=/path/to/pg_config"
}

write_install() {
    cat <<END
pg_once $(pg_once_version) for PostgreSQL $version on $(uname -m).

Install, as root:

    cp --remove-destination lib/* "\$(pg_config --pkglibdir)/"
    cp --remove-destination extension/* "\$(pg_config --sharedir)/extension/"

pg_config must be the one of the server that gets pg_once. --remove-destination lets running
sessions keep the old library; overwriting the library in place would crash the server.

Then, in each database that wants it: CREATE EXTENSION pg_once;
or, where an older version is: ALTER EXTENSION pg_once UPDATE; (docs/how-to/install.md)

Uninstall: DROP EXTENSION pg_once in each database that has it. If shared_preload_libraries has
pg_once, take it out and restart the server. Then, as root:

    rm "\$(pg_config --pkglibdir)/pg_once.so" "\$(pg_config --sharedir)/extension/pg_once"[.-]*
END
}

make_tarball() {
    local name to
    name=pg_once-$(pg_once_version)-pg$version-$(uname -m)
    to=$out/$name
    rm -rf "$to" "$to.tar.gz"
    cp -r "$stage" "$to"
    cp LICENSE "$to/"
    copy_documents "$to/doc"
    write_install >"$to/INSTALL"
    chmod 0644 "$to/LICENSE" "$to/INSTALL"
    tar -C "$out" --owner 0 --group 0 --sort name -czf "$to.tar.gz" "$name"
    tar -tzf "$to.tar.gz" | sed 's/^/    /'
    note "written: target/package/$name.tar.gz"
}

choose_server
say "Packaging pg_once $(pg_once_version) for PostgreSQL $version ($kind)"
need_rust
need_c_toolchain
need_cargo_pgrx
out=$ROOT/target/package
stage=$CARGO_TARGET_DIR/stage/package-$version
mkdir -p "$out"
stage_extension "$config" release "$stage"
case $kind in
    tarball) make_tarball ;;
    deb) make_deb "$version" "$stage" "$out" ;;
    *) die "package.sh makes a tarball or a deb, not $kind" ;;
esac
