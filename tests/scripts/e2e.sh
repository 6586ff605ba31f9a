# shellcheck shell=bash
# Running the end-to-end tests on one server, and where their clusters lie. Sourced after servers.sh.

# Tests of sessions mostly wait, for leases, locks and servers that start: more at once than there are cores.
test_threads() { echo "${RUST_TEST_THREADS:-$((3 * $(nproc)))}"; }

# The clusters of the end-to-end tests come and go by the hundred, with a thousand files each: in memory, where there is
# room for those of all tests that run at a time, else beside the other private clusters. PG_ONCE_ON_DISK=1: there.
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
    # What a run that was killed has left.
    find "$memory" -maxdepth 1 -name 'pg_once.??????' -user "$(id -un)" -mmin +300 -exec rm -rf {} + 2>/dev/null || true
    mktemp -d "$memory/pg_once.XXXXXX"
}

# What the last test program left is removed by its leashes, which work on after it.
remove_clusters() {
    local round
    trap '' INT TERM
    for ((round = 0; round < 100; round++)); do
        if [ "$(ls -A "$1")" = templates ]; then break; fi
        sleep 0.1
    done
    rm -rf "$1" || note "left behind: $1"
}

# `run_e2e pg_config old_pg_config [argument of cargo test ...]`: the end-to-end tests on that server; the older one is
# what pg_upgrade begins with. In a shell of its own, at whose end the clusters are removed.
run_e2e() {
    local config=$1 old=$2 clusters threads
    shift 2
    threads=$(test_threads)
    clusters=$(directory_for_clusters "$threads")
    # shellcheck disable=SC2064
    trap "remove_clusters '$clusters'" EXIT
    chmod 0755 "$clusters"
    mkdir "$clusters/templates"
    RUST_TEST_THREADS=$threads PG_ONCE_PG_CONFIG=$config PG_ONCE_OLD_PG_CONFIG=$old \
        PG_ONCE_RUN_DIR=$clusters PG_ONCE_TEMPLATES=$clusters/templates \
        cargo test --no-fail-fast --package pg-once-tests "$@"
}
