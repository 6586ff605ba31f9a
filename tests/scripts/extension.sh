# shellcheck shell=bash
# Building the extension for one server and putting it there. Sourced after servers.sh.

# `install_extension /path/to/pg_config`: a release build, into exactly that server.
install_extension() {
    local config=$1 version headers sudo=()
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
    if ! may_write "$config"; then
        if [ -t 0 ] || sudo -n true 2>/dev/null; then
            sudo=(--sudo)
        else
            die "only root may install into $("$config" --pkglibdir)" \
                "Run: sudo -v && make install PG_CONFIG=$config" "or the latter as root"
        fi
    fi
    headers=$(headers_for "$version" "$config")
    pgrx_env "$version" "$headers"
    cargo pgrx install --release --package pg_once --no-default-features --features "pg$version" \
        --pg-config "$config" "${sudo[@]}"
}

may_write() { [ -w "$("$1" --pkglibdir)" ] && [ -w "$("$1" --sharedir)/extension" ]; }

# Our private copy's headers where they are the same: what was built for it is used again then.
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
