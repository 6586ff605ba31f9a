# shellcheck shell=bash
# shellcheck disable=SC2034 # variables for the scripts that source this
# Shared by every script here: paths, messages, installing packages, and the OS user that runs servers. Sourced,
# never run. No script changes the user's ~/.pgrx or the default Rust toolchain.

set -euo pipefail
umask 022

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
cd "$ROOT"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}
TOOLS=$ROOT/target/tools
# `make test` takes the first of these versions that is available. `make test-matrix` takes all of them, and also each
# version of KNOWN_VERSIONS whose server is on this machine.
ALWAYS_VERSIONS="15 16 18"
KNOWN_VERSIONS="15 16 17 18"
# If `make test-matrix` runs no tests on this version, it compiles and lints the extension for this version.
COMPILED_VERSION=17
# Servers must not inherit a user's client settings.
unset PGHOST PGPORT PGUSER PGDATABASE PGDATA PGPASSWORD PGOPTIONS PGSERVICE

say() { printf '\n==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
warn() { printf '    warning: %s\n' "$*" >&2; }
die() {
    printf '\nerror: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" = 0 ]; }
is_ci() { [ "${CI:-}" = true ] || [ "${CI:-}" = 1 ]; }
# CI repeats no build, so cargo need not keep the data for incremental builds.
if is_ci; then export CARGO_INCREMENTAL=0; fi

# Debian packages -------------------------------------------------------------------------------

# PG_ONCE_NO_APT=1 keeps the system's packages as they are.
can_apt() {
    [ -z "${PG_ONCE_NO_APT:-}" ] && have apt-get && { is_root || sudo -n true 2>/dev/null; }
}

as_root() { if is_root; then "$@"; else sudo -n "$@"; fi; }

apt_missing() {
    local package
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
    done
}

# Reads the whole output of apt-cache: if sed quit at the first match, apt-cache would fail, and the pipe with it.
apt_knows() { [ -n "$(apt-cache policy "$1" 2>/dev/null | sed -n '/Candidate: [^(]/p')" ]; }

# Installs those of the named packages that are missing; false if installing is not allowed or fails.
apt_install() {
    local missing
    can_apt || return 1
    mapfile -t missing < <(apt_missing "$@")
    [ "${#missing[@]}" = 0 ] && return 0
    note "installing Debian packages: ${missing[*]}"
    if [ -z "${APT_UPDATED:-}" ]; then
        as_root apt-get update -qq || warn "apt-get update failed; using the present lists"
        APT_UPDATED=1
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "${missing[@]}" </dev/null >/dev/null
}

# The OS user that runs servers -----------------------------------------------------------------

# The present user, or, for root, an unprivileged one: PostgreSQL refuses to run as root.
server_user() {
    if ! is_root; then
        id -un
        return
    fi
    local name
    if [ -z "${PG_ONCE_OS_USER:-}" ]; then
        id pgonce >/dev/null 2>&1 ||
            useradd --system --user-group --no-create-home --home-dir /nonexistent \
                --shell /usr/sbin/nologin pgonce 2>/dev/null || true
        for name in pgonce postgres nobody; do
            if id "$name" >/dev/null 2>&1; then
                PG_ONCE_OS_USER=$name
                break
            fi
        done
    fi
    [ -n "${PG_ONCE_OS_USER:-}" ] ||
        die "root needs an unprivileged user to run PostgreSQL, and none could be created" \
            "Run: useradd --system pgonce"
    echo "$PG_ONCE_OS_USER"
}

as_server_user() {
    if is_root; then
        setpriv --reuid "$SERVER_USER" --regid "$(id -g "$SERVER_USER")" --clear-groups -- "$@"
    else
        "$@"
    fi
}

SERVER_USER=$(server_user)
if is_root; then export PG_ONCE_OS_USER=$SERVER_USER; fi

# Where servers and clusters are ----------------------------------------------------------------

# Under target/, unless the server's user cannot reach it (root's clone in a directory of mode 0700).
state_directory() {
    local inside=$ROOT/target/state outside
    mkdir -p "$inside"
    # Keeps a directory that was chosen before: with another path everything would be built again.
    if [ -s "$inside/elsewhere" ] && [ -O "$(cat "$inside/elsewhere")" ]; then
        cat "$inside/elsewhere"
        return
    fi
    if as_server_user test -x "$inside" 2>/dev/null; then
        echo "$inside"
        return
    fi
    outside=/tmp/pg_once-$(printf %s "$ROOT" | cksum | cut -d' ' -f1)
    mkdir -p "$outside"
    # A name in /tmp can be guessed: never use a directory of another user.
    if [ ! -O "$outside" ] || [ -L "$outside" ]; then die "$outside belongs to another user; remove it"; fi
    echo "$outside" >"$inside/elsewhere"
    echo "$outside"
}

STATE=$(state_directory)
export PG_ONCE_RUN_DIR=$STATE/run
mkdir -p "$PG_ONCE_RUN_DIR"

# The pg_config of our private copy of a server, by major version.
private_pg_config() { echo "$STATE/pg$1/pg_config"; }

# "PostgreSQL 15.20 (Debian ...)" -> 15; nothing if pg_config cannot be run.
major_version() {
    "$1" --version 2>/dev/null | sed -n 's/^[^0-9]*\([0-9][0-9]*\).*/\1/p'
}

pg_once_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml; }
