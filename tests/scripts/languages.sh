# shellcheck shell=bash
# Tests the example programs in other languages (sql/examples/) on a private cluster. Each language has a database of
# its own. Sourced after cluster.sh.
#
# The dependencies of Python and Node are installed under target/tools/languages, in pinned versions. Java uses Debian's
# driver. Missing languages are installed from Debian packages where that is allowed.

# shellcheck disable=SC2034 # for the script that sources this
LANGUAGES="python node java"

# The packages of each language.
language_packages() {
    case $1 in
        python) echo "python3 python3-venv" ;;
        node) echo "nodejs npm" ;;
        java) echo "default-jdk-headless libpostgresql-jdbc-java" ;;
    esac
}

# `need_language name`: installs what the language needs; false, with the reason printed, where that is impossible.
need_language() {
    local packages
    read -ra packages <<<"$(language_packages "$1")"
    "has_$1" || apt_install "${packages[@]}" || true
    if ! "has_$1"; then
        warn "the examples in $1 need packages that are missing. Run: sudo apt-get install ${packages[*]}"
        return 1
    fi
    "ready_$1" || { warn "the dependencies of the examples in $1 could not be installed"; return 1; }
}

language_directory() { echo "$TOOLS/languages/$1"; }

has_python() { python3 -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

has_node() { have npm && node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 18 || (a == 18 && b >= 20) ? 0 : 1)' 2>/dev/null; }

# Set PGJDBC to the file of the driver if Debian's driver is not installed.
pgjdbc() { echo "${PGJDBC:-/usr/share/java/postgresql.jar}"; }

has_java() { have java && javac --release 17 --version >/dev/null 2>&1 && [ -f "$(pgjdbc)" ]; }

# Whether the directory was made from exactly these files: `is_made_of directory file ...`
is_made_of() {
    local directory=$1
    shift
    [ "$(cat "$directory/made-of" 2>/dev/null)" = "$(cat "$@" | cksum)" ]
}

made_of() {
    local directory=$1
    shift
    cat "$@" | cksum >"$directory/made-of"
}

# Makes two environments: one with all that the tests need, and one (bare/) with only the driver.
ready_python() {
    local directory from=sql/examples/python
    directory=$(language_directory python)
    if is_made_of "$directory" "$from/requirements.txt" "$from/requirements-test.txt" &&
        "$directory/bare/bin/python" -c 'import psycopg' 2>/dev/null; then return; fi
    note "installing the dependencies of the Python examples into target/tools/languages"
    rm -rf "$directory"
    python3 -m venv "$directory" && python3 -m venv "$directory/bare" &&
        python_install "$directory" -r "$from/requirements.txt" -r "$from/requirements-test.txt" &&
        python_install "$directory/bare" -r "$from/requirements.txt" &&
        made_of "$directory" "$from/requirements.txt" "$from/requirements-test.txt"
}

# `python_install environment argument ...`
python_install() {
    local directory=$1
    shift
    "$directory/bin/pip" --disable-pip-version-check install --quiet --only-binary=:all: "$@"
}

# Installs outside of sql/examples, so that no node_modules appears there.
ready_node() {
    local directory from=sql/examples/node
    directory=$(language_directory node)
    mkdir -p "$directory"
    if is_made_of "$directory" "$from/package.json" "$from/package-lock.json" && [ -d "$directory/node_modules/pg" ]; then return; fi
    note "installing the dependencies of the Node examples into target/tools/languages"
    cp "$from/package.json" "$from/package-lock.json" "$directory/" &&
        (cd "$directory" && npm ci --silent --no-audit --no-fund) &&
        made_of "$directory" "$from/package.json" "$from/package-lock.json"
}

ready_java() { true; }

# Installs the package as a wheel. The tests import the installed package, not the files of its source folder.
python_wheel() {
    local directory=$1
    rm -rf "$directory/wheels" &&
        "$directory/bin/pip" --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --no-index \
            --wheel-dir "$directory/wheels" ./sql/examples/python &&
        python_install "$directory" --force-reinstall --no-deps --no-index "$directory"/wheels/*.whl &&
        python_install "$directory/bare" --force-reinstall --no-deps --no-index "$directory"/wheels/*.whl
}

test_python() {
    local directory from=sql/examples/python examples status=0
    export PYTHONDONTWRITEBYTECODE=1
    directory=$(realpath "$(language_directory python)")
    python_wheel "$directory" &&
        (cd "$from" && "$directory/bin/ruff" check --quiet --no-cache . && "$directory/bin/ruff" format --quiet --no-cache --check . &&
            "$directory/bin/mypy" --cache-dir=/dev/null) &&
        "$directory/bare/bin/python" -m unittest discover --start-directory "$from/test" --pattern test_library.py || return
    # test_examples.py kills the example programs at their statements, and mostly waits. So it runs beside the other
    # tests, in a copy of the database.
    PGHOST=127.0.0.1 PGPORT=$CLUSTER_PORT PGUSER=postgres "$1/createdb" --template python python_examples
    PG_ONCE_URL=${PG_ONCE_URL}_examples PG_ONCE_ADMIN_URL=${PG_ONCE_ADMIN_URL}_examples \
        "$directory/bin/python" -m unittest discover --start-directory "$from/test" --pattern test_examples.py &
    examples=$!
    "$directory/bin/python" -m unittest discover --start-directory "$from/test" --pattern 'test_[!e]*.py' || status=1
    wait "$examples" && return "$status"
}

test_node() {
    local directory
    directory=$(language_directory node)
    rm -rf "$directory/pg_once" "$directory/test"
    cp -R sql/examples/node/*.js sql/examples/node/pg_once sql/examples/node/test "$directory/"
    # Node 18's test runner takes a folder, later test runners take patterns; all take names of files.
    (cd "$directory" && node --test --test-concurrency=1 --test-reporter=spec test/*.test.js)
}

test_java() {
    local directory
    directory=$(language_directory java)
    rm -rf "$directory"
    mkdir -p "$directory"
    find sql/examples/java -name '*.java' -print0 |
        xargs -0 javac --release 17 -Xlint:all,-serial,-try -Werror -cp "$(pgjdbc)" -d "$directory"
    java -cp "$directory:$(pgjdbc)" shop.test.AllTests
}

languages_clean() {
    pooler_stop
    cluster_remove languages "$1"
}

# `one_language python bindir`: makes a database with the extension and the tables of orders.sql, and runs the
# language's own tests on it.
one_language() {
    local host=127.0.0.1:$CLUSTER_PORT
    export PG_ONCE_URL=postgresql://shop@$host/$1 PG_ONCE_ADMIN_URL=postgresql://postgres@$host/$1
    export PG_ONCE_CASES=$PWD/sql/examples/conformance.json
    if [ -n "${POOLER_PORT:-}" ]; then export PG_ONCE_POOLER_URL=postgresql://shop@127.0.0.1:$POOLER_PORT/$1; fi
    PGHOST=127.0.0.1 PGPORT=$CLUSTER_PORT PGUSER=postgres "$2/psql" -X -q -o /dev/null -v ON_ERROR_STOP=1 -d postgres \
        -c "create database $1" -c "\\c $1" -c 'create extension pg_once' -f sql/examples/orders.sql
    "test_$1" "$2"
}

# `language_tests version language ...`: tests all languages at once, since the tests mostly wait for leases to expire.
language_tests() {
    local config language log status=0
    local -A running=()
    config=$(private_pg_config "$1")
    shift
    cluster_remove languages "$config"
    # shellcheck disable=SC2064
    trap "languages_clean '$config'" EXIT
    cluster_start languages "$config" "listen_addresses = '127.0.0.1'" "fsync = off"
    "$("$config" --bindir)/createuser" -h 127.0.0.1 -p "$CLUSTER_PORT" -U postgres shop
    pooler_start languages 2
    for language in "$@"; do
        log=$(cluster_directory languages)/$language.log
        (trap - EXIT && one_language "$language" "$("$config" --bindir)") >"$log" 2>&1 </dev/null &
        running[$language]=$!
    done
    for language in "$@"; do
        wait "${running[$language]}" || status=1
        say "Examples in $language"
        cat "$(cluster_directory languages)/$language.log"
    done
    cluster_verified "$("$config" --bindir)" || status=1
    return "$status"
}
