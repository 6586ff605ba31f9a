# shellcheck shell=bash
# Runs the parts of a suite. Prints a line with the time of each part, and a table of all at the end. Sourced after
# lib.sh.

SUMMARY=()
FAILED=0
PARTS=
BEGIN=$SECONDS

# `want part ...` names the parts to run; `wanted part`: whether the part is one of them.
want() { PARTS=" $* "; }
wanted() { case "$PARTS" in *" $1 "*) ;; *) return 1 ;; esac }

# `ended "name" begin status [end]`: prints the line of a part that has ended, and keeps it for the table.
ended() {
    local result=ok end=${4:-$SECONDS}
    if [ "$3" != 0 ]; then
        result=FAILED
        FAILED=1
    fi
    SUMMARY+=("$(printf '%-8s %5d s  %s' "$result" "$((end - $2))" "$1")")
    note "$result: $1, $((end - $2)) s"
}

# `part "name" command ...`: runs the part. A failure is noted, and does not stop the script.
part() {
    local name=$1 begin=$SECONDS status
    shift
    say "$name"
    # In a subshell, so that a failure ends the part and not the script. In a condition (`if (...)`) bash would
    # ignore `set -e`.
    set +e
    (
        set -e
        "$@"
    )
    status=$?
    set -e
    ended "$name" "$begin" "$status"
}

# `beside "name" command ...`: starts a part that mostly waits, and the next parts run meanwhile; `join` waits for it
# and prints its output. Only one such part at a time.
beside() {
    BESIDE=$1 BESIDE_BEGIN=$SECONDS BESIDE_OUTPUT=$(mktemp "$STATE/run/XXXXXX")
    shift
    say "$BESIDE (beside the next parts; its output follows)"
    (
        set +e
        (
            set -e
            "$@"
        )
        status=$?
        echo "$SECONDS" >"$BESIDE_OUTPUT.end"
        exit "$status"
    ) >"$BESIDE_OUTPUT" 2>&1 </dev/null &
    BESIDE_JOB=$!
}

join() {
    local status=0
    if [ -z "${BESIDE:-}" ]; then return; fi
    wait "$BESIDE_JOB" || status=$?
    say "$BESIDE"
    cat "$BESIDE_OUTPUT"
    ended "$BESIDE" "$BESIDE_BEGIN" "$status" "$(cat "$BESIDE_OUTPUT.end")"
    rm -f "$BESIDE_OUTPUT" "$BESIDE_OUTPUT.end"
    BESIDE=
}

left_out() { SUMMARY+=("$(printf '%-8s %5s    %s' "LEFT OUT" "" "$1")"); }

summary() {
    say "Summary ($(((SECONDS - BEGIN) / 60)) min $(((SECONDS - BEGIN) % 60)) s${1:+, $1})"
    printf '    %s\n' "${SUMMARY[@]}"
    if [ "$FAILED" = 0 ]; then note "all passed"; else die "something failed; see above"; fi
}
