#!/usr/bin/env bash
# Runs pgspot over the install script, every upgrade script, and tests/upgrade/next.sql (the upgrade script to a version
# that only the tests have). No name or operator may resolve to an object that a user made, and no function may be
# SECURITY DEFINER without a pinned search_path.
#
#   pgspot.sh [directory]   the scripts of a build (target/stage/18/extension); without a directory, the install
#                           script that is assembled from sql/ as in a build
#
# pgspot needs no exceptions, because each script begins with SET LOCAL search_path = pg_catalog, pg_temp. A necessary
# exception (--ignore CODE, --proc-without-search-path 'FUNCTION') goes into ALLOWED with its reason.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh

ALLOWED=()

requirements=tests/scripts/pgspot.txt
tool=$TOOLS/pgspot

need_pgspot() {
    if [ -d "$tool/pgspot" ] && cmp -s "$requirements" "$tool/requirements"; then return 0; fi
    note "downloading pgspot and PostgreSQL's parser (Python wheels) into target/tools"
    rm -rf "$tool" "$tool.new"
    python_pip install -q --no-deps --only-binary=:all: --require-hashes --target "$tool.new" -r "$requirements" &&
        cp "$requirements" "$tool.new/requirements" && mv "$tool.new" "$tool"
}

pgspot() { PYTHONPATH=$tool python3 -m pgspot "$@"; }

# Assembles the install script from sql/ in the order of the build, and copies the upgrade scripts.
assemble() {
    local file
    sed -n 's|.*"\.\./\(sql/[a-z_]*\.sql\)".*|\1|p' pg_ext/src/lib.rs >"$work/files"
    for file in sql/[a-z]*.sql; do
        case $file in sql/pg_once--*) continue ;; esac
        grep -qx "$file" "$work/files" || die "$file is in no script: pg_ext/src/lib.rs does not name it"
    done
    xargs cat <"$work/files" >"$work/pg_once--$(pg_once_version).sql"
    find sql -name 'pg_once--*--*.sql' -exec cp {} "$work/" \;
}

if ! need_pgspot; then
    note "NOT CHECKED: pgspot is missing: python3 -m pip install -r $requirements (Python 3.11 to 3.13)"
    if is_ci; then exit 1; else exit 0; fi
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "${1:-}" ]; then cp "$1"/pg_once--*.sql "$work/"; else assemble; fi
cp tests/upgrade/next.sql "$work/pg_once--$(pg_once_version)--next.sql"
[ -s "$work/pg_once--$(pg_once_version).sql" ] || die "there is no install script of $(pg_once_version)"

# Proves that the check finds a known fault.
cat >"$work/bad" <<'END'
CREATE FUNCTION once.f() RETURNS integer LANGUAGE sql SECURITY DEFINER AS 'SELECT 1 = 1';
END
found=$(pgspot "$work/bad" || true)
case $found in
    *PS003*) ;;
    *) die "pgspot misses a known finding" "$found" ;;
esac

status=0
for script in "$work"/pg_once--*.sql; do
    say "pgspot: ${script##*/}"
    pgspot "${ALLOWED[@]}" "$script" || status=1
done
exit "$status"
