#!/usr/bin/env bash
# make test-matrix: the tests on other versions and installations than those of `make test`. Prints a line for each part
# with its time, and a table at the end. Arguments: the parts wanted (compile core pooler languages pictures
# package); without any, all of them.
#   compile    lints of the client without features, and of the extension for the version that no test runs on
#   core       the core of the end-to-end tests: release build on the oldest version, dev build on the middle ones
#   pooler     end-to-end and client tests on the newest version, through PgBouncer in transaction mode
#   languages  the example programs in Python, Node and Java, killed and raced, on the newest version
#   pictures   mermaid blocks of the book and machine_diagram's answers, drawn in a browser, on the newest version
#   package    the tarball and, as root on Debian, the Debian package: installed, used, upgraded, removed
# PG_VERSIONS="15 16 18" names the versions, the newest last. The release build and the tarball use the first version;
# the Debian package uses the first that is installed from Debian's packages.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/suite.sh
. tests/scripts/deb.sh
. tests/scripts/languages.sh
. tests/scripts/pictures.sh

if [ $# -gt 0 ]; then want "$@"; else want compile core pooler languages pictures package; fi
# The tests that depend most on the server's version and the build: table access, locks, isolation, crashes.
CORE=(--test keys --test races --test machines --test outbox --test sweeps --test crash)

# The release build takes minutes, mostly on one core, so it is started here and runs beside the first parts. The part
# that installs the release build waits for cargo's lock, and reports a failure of the build.
release_ahead() {
    set -m
    stage_extension "$(private_pg_config "$OLDEST")" release "$CARGO_TARGET_DIR/stage/ahead" >/dev/null 2>&1 </dev/null &
    AHEAD=$!
    set +m
    trap 'kill -- "-$AHEAD" 2>/dev/null || true' EXIT
}

compiled() {
    local version=$COMPILED_VERSION
    part "lints of the client without features" bash tests/scripts/lint.sh bare
    case " ${VERSIONS[*]} " in *" $version "*) return ;; esac
    if need_server "$version"; then
        part "lints of the extension, compiled for PostgreSQL $version" \
            env PG_VERSIONS="$version" bash tests/scripts/lint.sh extension
    else
        left_out "build check, PostgreSQL $version: its headers cannot be had"
    fi
}

pooler_is_here() { has_pgbouncer || is_ci; }

# Tests the languages that are installed or can be installed; under CI a missing language is a failure.
languages() {
    local language ready=()
    for language in $LANGUAGES; do
        if need_language "$language"; then
            ready+=("$language")
        elif is_ci; then
            part "examples in $language" die "what they need is missing; see above"
        else
            left_out "examples in $language: sudo apt-get install $(language_packages "$language")"
        fi
    done
    if [ "${#ready[@]}" = 0 ]; then return; fi
    beside "examples in ${ready[*]}, PostgreSQL $NEWEST" language_tests "$NEWEST" "${ready[@]}"
}

pictures() {
    if can_draw; then
        part "pictures drawn in a browser, PostgreSQL $NEWEST" picture_tests "$NEWEST"
    elif is_ci; then
        part "pictures drawn in a browser" die "chromium or npm is missing, or mermaid could not be downloaded; see above"
    else
        left_out "pictures drawn in a browser: sudo apt-get install chromium nodejs npm"
    fi
}

# The server version for which our Debian package is tested: the first tested version that is installed here from
# Debian's packages.
deb_version_here() {
    local version
    for version in "${VERSIONS[@]}"; do
        if [ -x "/usr/lib/postgresql/$version/bin/pg_config" ] && have pg_createcluster; then
            echo "$version"
            return
        fi
    done
    return 1
}

package_tests() {
    local version
    part "the tarball, PostgreSQL $OLDEST" bash tests/scripts/test_package.sh tarball "$OLDEST"
    if ! version=$(deb_version_here); then
        left_out "the Debian package: sudo apt-get install $(server_packages 15)"
    elif ! is_root; then
        left_out "the Debian package: sudo make test-package"
    elif ! is_ci && [ -n "$(ours_on_disk)" ]; then
        left_out "the Debian package: a PostgreSQL of this machine has pg_once, which the test would replace"
    else
        beside "the Debian package, PostgreSQL $version" bash tests/scripts/test_package.sh deb "$version"
    fi
}

say "Setting up"
setup
# shellcheck disable=SC2046,SC2086
take_versions ${PG_VERSIONS:-$(default_versions)}
[ "${#VERSIONS[@]}" -gt 0 ] || die "no PostgreSQL server with headers could be had"
OLDEST=${VERSIONS[0]} NEWEST=${VERSIONS[-1]}
note "testing on PostgreSQL: ${VERSIONS[*]}"

if wanted core || wanted pooler || wanted package; then release_ahead; fi
if wanted compile; then compiled; fi
if wanted pooler || wanted languages || wanted pictures; then built "$NEWEST" dev; fi
if wanted languages; then languages; fi
if wanted pictures; then pictures; fi
if wanted core; then
    for version in "${VERSIONS[@]:1}"; do
        if [ "$version" = "$NEWEST" ]; then continue; fi
        built "$version" dev
        part "the core of the end-to-end tests, PostgreSQL $version" e2e_tests "$version" "${CORE[@]}"
    done
fi
# The core tests run on the oldest version, and the tests of pg_upgrade begin on it, so it must have the extension.
if wanted core || wanted pooler; then built "$OLDEST" release; fi
if wanted core; then
    part "the core of the end-to-end tests with the release build, PostgreSQL $OLDEST" e2e_tests "$OLDEST" "${CORE[@]}"
fi
join
if wanted package; then package_tests; fi
if wanted pooler && pooler_is_here; then
    # `make test` runs every interleaving and every cut of a teardown already.
    POOLED=1 E2E_SKIP="every_interleaving a_teardown_cut" part "end-to-end tests through PgBouncer, PostgreSQL $NEWEST" e2e_tests "$NEWEST"
    POOLED=1 part "the client's tests through PgBouncer, doctests and examples, PostgreSQL $NEWEST" client_tests "$NEWEST"
elif wanted pooler; then
    left_out "PostgreSQL $NEWEST through PgBouncer: sudo apt-get install pgbouncer"
fi
join
summary
