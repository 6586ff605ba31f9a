# shellcheck shell=bash
# Mermaid's pictures: the library for the book, and a test in a browser. The library must draw every block of README
# and docs/ and the diagrams of three machines. Sourced after lib.sh; the test needs cluster.sh.

# Sets MERMAID to the library's file, of the version in tests/mermaid/package-lock.json; false if npm is missing or fails.
need_mermaid() {
    local directory=$TOOLS/mermaid
    MERMAID=$directory/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js
    if [ -s "$MERMAID" ] && cmp -s tests/mermaid/package-lock.json "$directory/package-lock.json"; then return; fi
    have npm || return 1
    note "downloading mermaid into target/tools"
    mkdir -p "$directory"
    cp tests/mermaid/package.json tests/mermaid/package-lock.json "$directory/"
    if ! (cd "$directory" && npm ci --silent --no-audit --no-fund --ignore-scripts) || [ ! -s "$MERMAID" ]; then
        rm -rf "$directory"
        return 1
    fi
}

can_draw() {
    # Installs only what is missing: Debian's npm conflicts with a Node from elsewhere, which has an npm of its own.
    have chromium || apt_install chromium || true
    have npm || apt_install nodejs npm || true
    have chromium && need_mermaid
}

# `machine_picture psql path`: prints a mermaid block with the diagram of one machine. The file "$path.sql" makes the
# machine's tables, and the file "$path.json" declares the machine.
machine_picture() {
    local machine=${2##*/}
    echo '```mermaid'
    "$1" -X -q -A -t -v ON_ERROR_STOP=1 -v definition="$(cat "$2.json")" -v machine="$machine" -f "$2.sql" -f - <<'END'
SELECT once.machine_define(:'definition') \g /dev/null
SELECT once.machine_diagram(:'machine');
END
    echo '```'
}

# Prints the mermaid blocks of pages as HTML elements with the page's name.
mermaid_blocks() {
    awk '/^```mermaid$/ { inside = 1; print "<pre class=\"picture\" title=\"" FILENAME "\">"; next }
        inside && /^```$/ { inside = 0; print "</pre>"; next }
        inside { gsub(/&/, "\\&amp;"); gsub(/</, "\\&lt;"); print }' "$@"
}

# `picture_tests version`
picture_tests() {
    local config psql directory path pages told count
    config=$(private_pg_config "$1") psql=$("$config" --bindir)/psql
    cluster_remove pictures "$config"
    # shellcheck disable=SC2064
    trap "cluster_remove pictures '$config'" EXIT
    cluster_start pictures "$config"
    export PGHOST=$CLUSTER_SOCKETS PGPORT=$CLUSTER_PORT PGUSER=postgres PGDATABASE=postgres
    "$psql" -X -q -c 'CREATE EXTENSION pg_once'
    directory=$(cluster_directory pictures)/page
    mkdir "$directory"
    cp "$MERMAID" "$directory/mermaid.js"
    for path in sql/examples/batch_job sql/examples/billing tests/mermaid/odd; do
        machine_picture "$psql" "$path" >"$directory/${path##*/}"
    done
    mapfile -t pages < <(find README.md docs -name '*.md' | sort)
    {
        echo '<!doctype html><meta charset="utf-8"><script src="mermaid.js"></script>'
        mermaid_blocks "${pages[@]}"
        (cd "$directory" && mermaid_blocks batch_job billing odd)
        cat tests/mermaid/check.html
    } >"$directory/page.html"
    count=$(grep -c '^<pre class="picture"' "$directory/page.html")
    timeout 120 chromium --headless --no-sandbox --disable-gpu --user-data-dir="$directory/browser" --virtual-time-budget=60000 \
        --dump-dom "file://$directory/page.html" >"$directory/drawn.html" 2>"$directory/log" </dev/null ||
        die "the browser failed" "$(tail -5 "$directory/log")"
    told=$(sed -n '/^<pre id="told">/,/^<\/pre>/p' "$directory/drawn.html" | sed 's/<[^>]*>//g')
    printf '%s\n' "$told"
    [ "$(grep -c '^drawn: ' <<<"$told")" = "$count" ] || die "not all of the $count pictures can be drawn; see above"
}
