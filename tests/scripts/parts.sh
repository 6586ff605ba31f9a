# shellcheck shell=bash
# The parts that a suite runs: each with a line that says how long it took, and a table of all at the end. Sourced
# after lib.sh.

SUMMARY=()
FAILED=0
PARTS=
BEGIN=$SECONDS

# `want part ...`: what was asked for; then `wanted part`.
want() { PARTS=" $* "; }
wanted() { case "$PARTS" in *" $1 "*) ;; *) return 1 ;; esac }

# `part "name" command ...`: a failure is noted, and the next part runs all the same.
part() {
    local name=$1 begin=$SECONDS status result=ok
    shift
    say "$name"
    # A shell of its own: a failure inside ends the part and not the run. In a condition (`if (...)`) bash would
    # ignore `set -e`.
    set +e
    (
        set -e
        "$@"
    )
    status=$?
    set -e
    if [ "$status" != 0 ]; then
        result=FAILED
        FAILED=1
    fi
    SUMMARY+=("$(printf '%-8s %5d s  %s' "$result" "$((SECONDS - begin))" "$name")")
    note "$result: $name, $((SECONDS - begin)) s"
}

left_out() { SUMMARY+=("$(printf '%-8s %5s    %s' "LEFT OUT" "" "$1")"); }

summary() {
    say "Summary ($(((SECONDS - BEGIN) / 60)) min $(((SECONDS - BEGIN) % 60)) s${1:+, $1})"
    printf '    %s\n' "${SUMMARY[@]}"
    if [ "$FAILED" = 0 ]; then note "all passed"; else die "something failed; see above"; fi
}
