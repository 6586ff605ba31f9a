# shellcheck shell=bash
# Builds the extension for one server and installs it there. Sourced after servers.sh.
#
# All installations are staged in one way: `make install` and the tests copy the staged files into a server,
# `make package` and `make deb` pack them.

# `stage_extension pg_config profile directory`: builds the extension in that cargo profile. Puts the library into
# lib/, and the control file, the install script and the upgrade scripts into extension/.
stage_extension() {
    local config=$1 profile=$2 stage=$3 version features file
    check_server "$config"
    version=$(major_version "$config")
    pgrx_env "$version" "$(headers_for "$version" "$config")"
    features=pg$version
    # The dev profile is for tests: with test_crates, cargo reuses what the in-database tests have built.
    if [ "$profile" = dev ]; then features+=" test_crates"; fi
    rm -rf "$stage"
    mkdir -p "$stage/lib" "$stage/extension"
    cargo pgrx package --profile "$profile" --package pg_once --no-default-features --features "$features" \
        --pg-config "$config" --out-dir "$stage/build"
    find "$stage/build" -name '*.so' -exec mv {} "$stage/lib/" \;
    find "$stage/build" \( -name '*.control' -o -name '*.sql' \) -exec mv {} "$stage/extension/" \;
    rm -rf "$stage/build"
    for file in lib/pg_once.so extension/pg_once.control "extension/pg_once--$(pg_once_version).sql"; do
        [ -s "$stage/$file" ] || die "the build made no $file"
    done
    for file in sql/pg_once--*--*.sql; do
        [ -e "$file" ] || continue
        cmp -s "$file" "$stage/extension/${file##*/}" || die "the build left $file out"
    done
    chmod 0755 "$stage"/lib/*
    chmod 0644 "$stage"/extension/*
}

# The server must be of a supported version, with its headers.
check_server() {
    local config=$1 version
    version=$(major_version "$config")
    "$config" --includedir-server >/dev/null 2>&1 || die "$config is not a pg_config"
    case " $KNOWN_VERSIONS " in
        *" $version "*) ;;
        *) die "$config is not the pg_config of PostgreSQL 15 to 18 (it says: $("$config" --version 2>&1 | head -1))" ;;
    esac
    if ! has_headers "$config"; then
        if apt_offers "postgresql-server-dev-$version"; then apt_install "postgresql-server-dev-$version" || true; fi
        has_headers "$config" || die "the server's headers are missing in $("$config" --includedir-server)" \
            "Run: sudo apt-get install postgresql-server-dev-$version"
    fi
}

# `install_extension pg_config [profile]`: builds, and installs into exactly that server.
install_extension() {
    local config=$1 profile=${2:-release} stage
    stage=$CARGO_TARGET_DIR/stage/$(major_version "$config")
    if ! may_write "$config" && [ ! -t 0 ] && ! sudo -n true 2>/dev/null; then
        die "only root may install into $("$config" --pkglibdir)" \
            "Run: sudo -v && make install PG_CONFIG=$config" "or the latter as root"
    fi
    stage_extension "$config" "$profile" "$stage"
    put_extension "$stage" "$config"
}

# `put_extension stage pg_config`. Each file appears in one step and under a new inode, so that open sessions go on with
# the old library. Overwriting the library in place would crash the server.
put_extension() {
    local stage=$1 config=$2 file to sudo=()
    if ! may_write "$config"; then sudo=(sudo); fi
    for file in "$stage"/lib/* "$stage"/extension/*; do
        case $file in
            "$stage"/lib/*) to=$("$config" --pkglibdir) ;;
            *) to=$("$config" --sharedir)/extension ;;
        esac
        "${sudo[@]}" install -m "$(stat -c %a "$file")" "$file" "$to/.${file##*/}.new"
        "${sudo[@]}" mv -f "$to/.${file##*/}.new" "$to/${file##*/}"
    done
    note "installed: $("$config" --pkglibdir)/pg_once.so and $("$config" --sharedir)/extension/pg_once*"
}

may_write() { [ -w "$("$1" --pkglibdir)" ] && [ -w "$("$1" --sharedir)/extension" ]; }

# `headers_for major_version pg_config`: prints the pg_config whose headers the build uses. A private copy with the
# same version and the same pg_config.h as the given server comes first, because cargo reuses what it built for the
# copy. Without such a copy, the given pg_config is printed.
headers_for() {
    local private
    private=$(private_pg_config "$1")
    if [ -x "$private" ] && [ "$("$private" --version)" = "$("$2" --version)" ] &&
        cmp -s "$("$private" --includedir-server)/pg_config.h" "$("$2" --includedir-server)/pg_config.h"; then
        echo "$private"
    else
        echo "$2"
    fi
}

# `copy_documents directory`: copies the documents, the examples and the monitoring files.
copy_documents() {
    local to=$1
    mkdir -p "$to"
    cp README.md CHANGELOG.md "$to/"
    cp -r docs sql/examples sql/monitoring "$to/"
    find "$to" \( -name __pycache__ -o -name node_modules \) -prune -exec rm -rf {} +
    chmod -R u=rwX,go=rX "$to"
}
