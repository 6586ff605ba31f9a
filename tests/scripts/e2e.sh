# shellcheck shell=bash
# Runs the end-to-end tests on one server, and chooses the place of their clusters. Sourced after servers.sh.

# The tests mostly wait: for leases, locks and servers that start. So a test program runs more tests at once than there
# are cores.
test_threads() { echo "${RUST_TEST_THREADS:-$((2 * $(nproc)))}"; }

# The end-to-end tests make hundreds of clusters of a thousand files each. These files are in memory if it has room for
# all clusters that run at a time, else under $STATE/run. PG_ONCE_ON_DISK=1: never in memory.
directory_for_clusters() {
    local memory=/dev/shm needed_kb=$((3 * 1024 * 1024 + $1 * 256 * 1024)) free available most used
    free=$(df -k --output=avail "$memory" 2>/dev/null | tail -1)
    available=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)
    most=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)
    used=$(cat /sys/fs/cgroup/memory.current 2>/dev/null || echo 0)
    if [[ "$most" =~ ^[0-9]+$ ]] && [ $(((most - used) / 1024)) -lt "${available:-0}" ]; then
        available=$(((most - used) / 1024))
    fi
    if [ -n "${PG_ONCE_ON_DISK:-}" ] || [ "$(stat -f -c %T "$memory" 2>/dev/null)" != tmpfs ] || [ ! -w "$memory" ] ||
        [ "${free:-0}" -lt "$needed_kb" ] || [ "${available:-0}" -lt "$needed_kb" ]; then
        mktemp -d "$STATE/run/XXXXXX"
        return
    fi
    # Removes what killed runs left here more than five hours ago.
    find "$memory" -maxdepth 1 -name 'pg_once.??????' -user "$(id -un)" -mmin +300 -exec rm -rf {} + 2>/dev/null || true
    mktemp -d "$memory/pg_once.XXXXXX"
}

# Waits, up to 10 s, until the leash processes (tests/src/leash.rs) have removed the clusters; then removes the rest.
remove_clusters() {
    local round
    trap '' INT TERM
    for ((round = 0; round < 100; round++)); do
        if [ "$(ls -A "$1")" = templates ]; then break; fi
        sleep 0.1
    done
    rm -rf "$1" || note "left behind: $1"
}

# The programs that a measurement found to take longest. They begin first, so that none of them runs alone at the end.
LONGEST="shards teardown janitor nothing_lost kills pages outbox_retire metrics machines guard keys"

# `e2e_programs [--test name ...]`: prints a line with name and file for each test program, the longest first. The
# client's test programs are left out.
e2e_programs() {
    local built
    built=$(cargo test --no-run --color never "${BOTH[@]}" "$@" 2>&1) || {
        printf '%s\n' "$built" >&2
        return 1
    }
    # Reads cargo's lines, such as "Executable e2e/keys/main.rs (target/debug/deps/keys-0123)".
    sed -n 's/^ *Executable \(unittests \)\?\(.*\) (\(.*\))$/\2 \3/p' <<<"$built" | awk -v longest="$LONGEST" '
        BEGIN { n = split(longest, names, " "); for (i = 1; i <= n; i++) rank[names[i]] = i }
        $2 ~ /\/pg_once-[^\/]*$/ || $2 ~ /\/client-[^\/]*$/ { next }
        {
            name = $2; sub(/.*\//, "", name); sub(/-[0-9a-f]*$/, "", name)
            print (name in rank ? rank[name] : n + 1), name, $2
        }' | sort -s -n -k 1,1 | cut -d ' ' -f 2-
}

# `run_e2e pg_config old_pg_config [--test name ...]`: runs the end-to-end tests on the server of pg_config. The tests
# of pg_upgrade, and of a shard's move to a newer version, begin on the server of old_pg_config. Two programs run at a
# time, since most of them wait. A program that has ended prints one line, and its whole output if it failed. E2E_SKIP
# names tests to leave out. E2E_WITHOUT names one program to leave out. Call run_e2e in a subshell, whose end removes
# the clusters.
run_e2e() {
    local config=$1 old=$2 clusters programs name file status skip=() failures=()
    for name in ${E2E_SKIP:-}; do skip+=(--skip "$name"); done
    shift 2
    programs=$(e2e_programs "$@" | grep -v "^${E2E_WITHOUT:--} ") || return 1
    [ -n "$programs" ] || die "no test program is called so: $*"
    clusters=$(directory_for_clusters "$(test_threads)")
    # shellcheck disable=SC2064
    trap "remove_clusters '$clusters'" EXIT
    chmod 0755 "$clusters"
    mkdir "$clusters/templates"
    mkdir -p "$STATE/e2e-logs"
    while read -r name file; do
        if [ "$(jobs -rp | wc -l)" -ge 2 ]; then wait -n || true; fi
        (
            trap - EXIT
            begin=$SECONDS status=ok
            # cargo test runs the end-to-end tests in the directory tests/, so this script does the same.
            cd tests || exit
            case $file in /*) ;; *) file=../$file ;; esac
            RUST_TEST_THREADS=$(test_threads) PG_ONCE_PG_CONFIG=$config PG_ONCE_OLD_PG_CONFIG=$old \
                PG_ONCE_RUN_DIR=$clusters PG_ONCE_TEMPLATES=$clusters/templates \
                "$file" "${skip[@]}" >"$STATE/e2e-logs/$name" 2>&1 </dev/null || status=FAILED
            echo "$status" >"$STATE/e2e-logs/$name.status"
            if [ "$status" = FAILED ]; then cat "$STATE/e2e-logs/$name"; fi
            note "$status: $name, $(sed -n 's/^test result: [^.]*\. \(.*\); 0 measured.*/\1/p' "$STATE/e2e-logs/$name"), $((SECONDS - begin)) s"
        ) &
    done <<<"$programs"
    wait
    while read -r name file; do
        status=$(cat "$STATE/e2e-logs/$name.status" 2>/dev/null || true)
        rm -f "$STATE/e2e-logs/$name.status"
        if [ "$status" != ok ]; then failures+=("$name"); fi
    done <<<"$programs"
    if [ "${#failures[@]}" != 0 ]; then
        warn "failed: ${failures[*]}; their output is above and in ${STATE#"$ROOT"/}/e2e-logs"
        return 1
    fi
}
