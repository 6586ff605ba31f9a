#!/usr/bin/env bash
# Moves whole databases (shards) of pg_once from one cluster to another, behind PgBouncer. The book's page is
# docs/how-to/shards.md.
#
# Each run reads the state of the move from the servers and the pooler, mainly from the databases' names:
#   NAME         is the home: clients are sent there, or will be after the steps map and resume
#   NAME_coming  is being filled, at the target
#   NAME_moved   at the source: the former home. At the target of a split: the copy of a database that stays at the
#                source. No client is sent to NAME_moved, and the operator drops it in the end
# So the same command continues where a killed run stopped.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: shards.sh split        --from HOST:PORT --to HOST:PORT --pooler HOST:PORT --map FILE --data DIR [options] NAME...
       shards.sh move-logical --from HOST:PORT --to HOST:PORT --pooler HOST:PORT --map FILE [options] NAME
       shards.sh move-dump    --from HOST:PORT --to HOST:PORT --pooler HOST:PORT --map FILE [options] NAME

  split         Makes a new cluster from a physical copy. The databases NAME... are there afterwards, the others stay at
                --from. Run it on the new machine, as the OS user of the server. pg_hba.conf at --from must let that
                machine in for replication.
  move-logical  Moves a database by logical replication, also to a newer major version. Needs wal_level = logical;
                no DDL until the move is done.
  move-dump     Moves a database by dump and restore.

Clients wait at the pooler. First they wait for open transactions: at most --patience for each database at each
PgBouncer, one after another. Then they wait for a few seconds (split, move-logical), or as long as dump and restore
take (move-dump; restore a backup first to see how long). PgBouncer's query_wait_timeout must be longer.

  --from HOST:PORT     the cluster where the databases are, as the pooler knows it
  --to HOST:PORT       the cluster where they go, as the pooler will know it
  --pooler HOST:PORT   PgBouncer's admin console; once for each PgBouncer
  --map FILE           the file with the lines "NAME = host=... port=..." that each PgBouncer includes, such as
                       /srv/shards/map.ini; this machine and the poolers must see the same directory, and you need
                       the right to write in it, since a new file replaces the old one
  --data DIR           split: the new cluster's data directory; it does not exist yet or is empty, and it is no mount
                       point
  --options OPTIONS    split: more options for the new server's command line, such as '-c config_file=...'
  --patience SECONDS   how long the pause waits for open transactions in each database, at each PgBouncer (5)
  --yes                go on without a question

HOST may be the directory of a socket. The user is PGUSER, a superuser of both clusters and one of PgBouncer's
admin_users; passwords come from ~/.pgpass (move-logical: the server at --to reads its own ~/.pgpass, too). Where
pg_hba.conf or ~/.pgpass name databases, add NAME_moved and NAME_coming. The programs pg_dump, pg_ctl, ... are taken
from the PATH and must be of the newer of the two versions.

One move runs at a time: FILE.lock is locked meanwhile. Killed, or stopped by an error? Run the same command again: it
skips the work that is done. The old homes are renamed to NAME_moved and closed. Drop them when you have seen that all
is well.
HELP
}

die() {
    printf 'error: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 2
}
note() { printf '    %s\n' "$*"; }

# Arguments -------------------------------------------------------------------------------------

case ${1:-} in
split | move-logical | move-dump) COMMAND=$1 ;;
-h | --help | help) usage && exit ;;
*) usage >&2 && exit 2 ;;
esac
shift
FROM='' TO='' MAP='' DATA='' OPTIONS='' PATIENCE=5 YES='' POOLERS=() NAMES=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage && exit ;;
    --yes) YES=1 ;;
    --from | --to | --pooler | --map | --data | --options | --patience)
        [ $# -ge 2 ] || die "$1 needs a value"
        case $1 in
        --from) FROM=$2 ;;
        --to) TO=$2 ;;
        --pooler) POOLERS+=("$2") ;;
        --map) MAP=$2 ;;
        --data) DATA=${2%/} ;;
        --options) OPTIONS=$2 ;;
        --patience) PATIENCE=$2 ;;
        esac
        shift
        ;;
    -*) die "there is no option $1" "shards.sh --help lists them." ;;
    *)
        [[ $1 =~ ^[A-Za-z0-9_-]{1,50}$ ]] || die "$1 is no name that this script moves" "Letters, digits, _ and -, at most 50."
        NAMES+=("$1")
        ;;
    esac
    shift
done
for address in "$FROM" "$TO" "${POOLERS[@]:-}"; do
    [[ $address =~ ^[^[:space:]:]+:[0-9]+$ ]] || die "--from, --to and --pooler each need HOST:PORT, not \"$address\""
done
[ "$FROM" != "$TO" ] || die "--from and --to are one cluster"
if [ ! -w "$MAP" ] || [ ! -w "$(dirname "$MAP")" ]; then die "--map must name a file that you may write, in a directory that you may write in"; fi
[[ $PATIENCE =~ ^[1-9][0-9]*$ ]] || die "--patience needs whole seconds, at least 1, not \"$PATIENCE\""
[ "${#NAMES[@]}" -gt 0 ] || die "name a database"
if [ "$COMMAND" = split ]; then
    [ -n "$DATA" ] || die "split needs --data"
elif [ "${#NAMES[@]}" -gt 1 ]; then
    die "$COMMAND moves one database at a time"
fi
NAME=${NAMES[0]} PUBLICATION=pg_once_move
# A slot's name may have only small letters, digits and _.
case $COMMAND in split) SLOT=pg_once_split_${TO##*:}_${TO%:*} ;; *) SLOT=pg_once_move_$NAME ;; esac
SLOT=$(tr -c 'a-z0-9\n' _ <<<"${SLOT,,}" | cut -c 1-63)
OUR_SLOT="FROM pg_replication_slots WHERE slot_name = '$SLOT' AND (database IS NULL OR database IN ('$NAME', '${NAME}_moved'))"
LIST=$(printf "'%s'," "${NAMES[@]}")
LIST=${LIST%,}
# One move at a time: another run would drop the database that this one fills, or overwrite the map that this one wrote.
[ -e "$MAP.lock" ] || cp --attributes-only --preserve=mode,ownership "$MAP" "$MAP.lock"
exec 9>>"$MAP.lock"
found=0
flock -w 5 9 || found=$?
case $found in 0) ;; 1) die "another move with $MAP is running" ;; *) die "$MAP.lock cannot be locked" ;; esac
export PGCONNECT_TIMEOUT=${PGCONNECT_TIMEOUT:-10}

# Steps -----------------------------------------------------------------------------------------

case $COMMAND in
split) STEPS=(check copy start follow pause fence promote names map resume close) ;;
move-logical) STEPS=(check twin subscribe copy analyze pause fence drain finish arrive map resume close) ;;
move-dump) STEPS=(check pause fence carry arrive map resume close) ;;
esac
case $COMMAND in split) PROGRAMS=(pg_basebackup pg_ctl pg_isready) ;; *) PROGRAMS=(pg_dump pg_restore) ;; esac
NUMBER=0 STEP='' CLIENTS_WAIT='' REPORTER=''

# Prints what the next step does, and waits for a yes, unless --yes is given or clients wait.
step() {
    local answer=''
    STEP=${STEPS[NUMBER]} NUMBER=$((NUMBER + 1))
    printf 'step %d of %d, %s: %s\n' "$NUMBER" "${#STEPS[@]}" "$STEP" "$1"
    if [ -n "$YES$CLIENTS_WAIT" ]; then return; fi
    printf '    yes or no? '
    read -r answer || true
    [ "$answer" = yes ] || die "not done: step $NUMBER, $STEP"
}

# In a trap, a return without an argument would return the script's status.
end_report() {
    if [ -z "$REPORTER" ]; then return 0; fi
    kill "$REPORTER" 2>/dev/null || true
    wait "$REPORTER" 2>/dev/null || true
    REPORTER=''
}
ended() {
    local status=$?
    end_report
    if [ "$status" != 0 ] && [ -n "$STEP" ]; then
        printf '%s stopped in step %d, %s. The same command goes on there.\n' "$COMMAND" "$NUMBER" "$STEP" >&2
        if [ -n "$CLIENTS_WAIT" ]; then printf 'CLIENTS WAIT at the pooler until that command has done its step resume.\n' >&2; fi
        sql "$FROM" postgres "SELECT format('The slot %s holds back the WAL at $FROM. If you give the move up, drop the slot, as the book says under
\"When a step dies\": SELECT pg_drop_replication_slot(%L);', slot_name, slot_name)
            $OUR_SLOT" >&2 2>/dev/null || true
    fi
}
trap ended EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# `until_true WHAT command...`: repeats the command while it returns 1; another error ends the script. Prints what the
# command writes (its progress), if changed: at the beginning, at the end, and at most every five seconds between.
until_true() {
    local what=$1 said='' last='' next=0 status
    shift
    while true; do
        status=0
        said=$("$@") || status=$?
        if [ "$said" != "$last" ] && { [ "$status" = 0 ] || [ "$SECONDS" -ge "$next" ]; }; then
            note "$what: $said"
            last=$said next=$((SECONDS + 5))
        fi
        case $status in 0) return ;; 1) sleep 0.2 ;; *) exit "$status" ;; esac
    done
}

# Servers and poolers ---------------------------------------------------------------------------

# `sql CLUSTER DATABASE [SQL]`: prints bare rows. Without an SQL argument, runs the standard input. A fresh copy of a
# cluster has no standby. With synchronous_commit = local, a commit there does not wait for one.
sql() {
    PGOPTIONS="${PGOPTIONS:-} -c synchronous_commit=local" psql -w -X -q -A -t -v ON_ERROR_STOP=1 -h "${1%:*}" -p "${1##*:}" -d "$2" ${3+-c "$3"} 9>&-
}
# A server that does not answer is an error here, never a "no".
ask() { sql "$@" || die "$1 did not answer, or refused"; }
is_true() {
    local answer
    answer=$(ask "$@") || exit 2
    [ "$answer" = t ]
}
has() { is_true "$1" postgres "SELECT EXISTS (SELECT FROM pg_database WHERE datname = '$2')"; }
size() { ask "$1" postgres "SELECT pg_size_pretty(pg_database_size('$2'))"; }
# Runs a part of a pipeline without the lock, since the part may outlive a killed script.
apart() { exec 9>&- && "$@"; }
program() { "$1" -w -h "${2%:*}" -p "${2##*:}" "${@:3}" 9>&-; }
admin() {
    psql -w -X -q -A -P footer=off -h "${1%:*}" -p "${1##*:}" -d pgbouncer -c "$2" 9>&- || die "the pooler at $1 did not answer, or refused"
}

# A line "NAME HOST:PORT PAUSED" for each database that is to move; PAUSED is 0 or 1.
homes() { # pooler
    admin "$1" 'SHOW DATABASES' | awk -F '|' -v names=" ${NAMES[*]} " '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        index(names, " " $at["name"] " ") && $at["database"] == $at["name"] { print $at["name"], $at["host"] ":" $at["port"], $at["paused"] }'
}

# The commit of the rename flushes the WAL, with all earlier commits of clients, also those with synchronous_commit =
# off. Later steps wait for the flushed end of the WAL, so it must include all of these commits.
rename() { # cluster, from, to
    local round command="ALTER DATABASE \"$2\" RENAME TO \"$3\""
    for round in 1 2 3 4 5; do
        if sql "$1" postgres "$command" 2>/dev/null; then return; fi
        end_sessions "$1" "$2"
        sleep "0.$round"
    done
    sql "$1" postgres "$command"
}
end_sessions() { ask "$1" postgres "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '$2'" >/dev/null; }
allow() { ask "$1" postgres "ALTER DATABASE \"$2\" ALLOW_CONNECTIONS $3"; }
prepared() { ask "$1" postgres "SELECT string_agg(gid, ' ') FROM pg_prepared_xacts WHERE database IN ($2)"; }

# Closes a home to all clients: refuses new connections, ends the sessions, and renames the database.
fence() { # name
    local open
    allow "$FROM" "$1" false
    end_sessions "$FROM" "$1"
    open=$(prepared "$FROM" "'$1'") || exit 2
    if [ -n "$open" ]; then
        allow "$FROM" "$1" true
        die "prepared transactions are open in $1: $open" "Clients wait: RESUME \"$1\" at the pooler, end the transaction, and start again."
    fi
    rename "$FROM" "$1" "${1}_moved"
}

# Checks what must hold before anything is done. SERVED: clients are sent to --to already; only the last step is left.
check() {
    local pooler name found
    for name in "${PROGRAMS[@]}"; do
        command -v "$name" >/dev/null || die "$name is not on the PATH" "Debian has it in /usr/lib/postgresql/VERSION/bin."
    done
    SERVED=1
    for pooler in "${POOLERS[@]}"; do
        found=$(homes "$pooler")
        [ "$(grep -c . <<<"$found")" = "${#NAMES[@]}" ] || die "the pooler at $pooler knows only: ${found:-none of them}" "Each database to be moved needs a line there, without another dbname."
        if grep -qvE " ($FROM|$TO) .$" <<<"$found"; then
            die "the pooler at $pooler sends clients elsewhere:" "$found" "Look at --from, and at $MAP."
        fi
        if grep -q ' 1$' <<<"$found"; then CLIENTS_WAIT=1; fi
        if grep -qv " $TO 0$" <<<"$found"; then SERVED=''; fi
    done
    for name in "${NAMES[@]}"; do
        [ "$(grep -E "^[[:space:]]*\"?${name}\"?[[:space:]]*=" "$MAP" | grep -cE "host=.*port=|port=.*host=")" = 1 ] || die "$MAP has no line \"$name = host=... port=...\""
    done
    found=$(ask "$FROM" postgres "SELECT m.datname FROM pg_database m JOIN pg_database d ON m.datname = d.datname || '_moved' WHERE d.datname IN ($LIST) LIMIT 1") || exit 2
    [ -z "$found" ] || die "$found is left at $FROM from an earlier move" "Look at it, and drop it there: DROP DATABASE \"$found\""
    found=$(prepared "$FROM" "$LIST") || exit 2
    [ -z "$found" ] || die "prepared transactions are open: $found" "COMMIT PREPARED or ROLLBACK PREPARED them."
    # In a copy of the cluster, enabled subscriptions would consume changes that the originals then miss.
    found=$(ask "$FROM" postgres "SELECT string_agg(subname || ' in ' || datname, ', ') FROM pg_subscription JOIN pg_database d ON d.oid = subdbid
        WHERE subenabled AND ('$COMMAND' = 'split' OR datname IN ($LIST))") || exit 2
    [ -z "$found" ] || die "subscriptions are enabled: $found" "ALTER SUBSCRIPTION ... DISABLE them; docs/how-to/shards.md says what follows the move."
}

# A server checks pg_hba.conf first. So if the error in `$2` is that there is no such database, the server let us in.
let_in() { # "USER into DATABASE at CLUSTER", what a try to connect printed
    # Only the last line of `$2` counts: earlier ones may be about another try of the connection, such as with SSL.
    if tail -n 1 <<<"${2//"$NAME"/}" | grep -qE 'pg_hba|fe_sendauth|authentication failed'; then die "$1 must be let in, too" "$2"; fi
}

offered() { ask "$1" postgres "SELECT default_version FROM pg_available_extensions WHERE name = 'pg_once'"; }

# Checks for move-logical and move-dump. FENCED: an earlier run has at least begun the fence. Only move-logical has the
# slot, from its step 3 to its last.
check_target() {
    local here there slot roles missing
    FENCED=$(ask "$FROM" postgres "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '$NAME' AND datallowconn)") || exit 2
    slot=$(ask "$FROM" postgres "SELECT 1 $OUR_SLOT") || exit 2
    [ "$COMMAND$slot" != move-dump1 ] || die "a move-logical of $NAME has begun" "Run that command again, or give it up first: docs/how-to/shards.md."
    if has "$TO" "$NAME"; then
        if has "$FROM" "$NAME"; then die "$NAME is in both clusters" "One of them is no home: look, and rename or drop it."; fi
    elif [ -z "$FENCED" ]; then
        let_in "${PGUSER:-$(id -un)} into ${NAME}_moved at $FROM" "$(LC_ALL=C sql "$FROM" "${NAME}_moved" 'SELECT 1' 2>&1 || true)"
        let_in "${PGUSER:-$(id -un)} into ${NAME}_coming at $TO" "$(LC_ALL=C sql "$TO" "${NAME}_coming" 'SELECT 1' 2>&1 || true)"
        here=$(ask "$FROM" "$NAME" "SELECT extversion FROM pg_extension WHERE extname = 'pg_once'")
        there=$(offered "$TO")
        [ "$here" = "$there" ] || die "pg_once is \"$here\" in $NAME, and would be \"$there\" at $TO" "Install or upgrade it first."
        if [ "$COMMAND" = move-dump ] && is_true "$FROM" "$NAME" "SELECT EXISTS (SELECT FROM pg_attribute WHERE attoptions::text LIKE '%pg\\_attver=%')" &&
            ! sql "$TO" postgres "CREATE TEMP TABLE marked (a integer); ALTER TABLE marked ALTER a SET (pg_attver=1)" 2>/dev/null; then
            die "$TO does not know the mark pg_attver that columns of $NAME have" "Take it off first: docs/how-to/backup.md, Upgrade."
        fi
        roles=$(ask "$FROM" postgres "SELECT quote_literal(r.rolname) FROM pg_shdepend d JOIN pg_roles r ON r.oid = d.refobjid
            JOIN pg_database b ON b.datname = '$NAME' AND (d.dbid = b.oid OR d.objid = b.oid AND d.classid = 'pg_database'::regclass)
            WHERE d.refclassid = 'pg_authid'::regclass
            UNION SELECT quote_literal(r.rolname) FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole
            JOIN pg_database b ON b.oid = s.setdatabase WHERE b.datname = '$NAME'") || exit 2
        missing=$(ask "$TO" postgres "SELECT string_agg(r, ' ') FROM unnest(ARRAY[NULL${roles:+,}${roles//$'\n'/,}]) r
            WHERE r NOT IN (SELECT rolname FROM pg_roles)") || exit 2
        [ -z "$missing" ] || die "these roles are missing at $TO: $missing" "Make them there first: pg_dumpall --roles-only."
        [ "$COMMAND" = move-logical ] || [ -n "$CLIENTS_WAIT" ] || rehearse
    else
        has "$FROM" "$NAME" || has "$FROM" "${NAME}_moved" || die "$NAME is in neither cluster"
        [ "$COMMAND$slot" != move-logical ] || die "$FROM has no slot $SLOT: a move-dump of $NAME has begun, or the slot was lost" "Run move-dump again, or give the move up first: docs/how-to/shards.md."
    fi
}

# Restores the schema alone, before clients wait: an extension, a locale or a tablespace may be missing at the target.
rehearse() {
    local failed=''
    create_coming "$NAME"
    fill_coming "$NAME" --schema-only --lock-wait-timeout=5s || failed=1
    ask "$TO" postgres "DROP DATABASE \"${NAME}_coming\" WITH (FORCE)"
    [ -z "$failed" ] || die "$NAME cannot be dumped, or not restored at $TO: see above"
}

pause() {
    local pooler name where paused found status
    CLIENTS_WAIT=1
    for pooler in "${POOLERS[@]}"; do
        found=$(homes "$pooler")
        while read -r name where paused; do
            if [ "$where $paused" != "$FROM 0" ]; then continue; fi
            status=0
            timeout "$PATIENCE" psql -w -X -q -h "${pooler%:*}" -p "${pooler##*:}" -d pgbouncer -c "PAUSE \"$name\"" </dev/null 9>&- || status=$?
            case $status in
            0) ;;
            124) note "$name: a transaction goes on; the next step ends its session" ;;
            *) die "the pooler at $pooler does not pause $name" ;;
            esac
        done <<<"$found"
    done
}

# Changes the line of each database in the map, and makes the poolers, which include this file, read it again.
map() {
    local pooler copy found line
    line="^([[:space:]]*\"?($(IFS='|' && echo "${NAMES[*]}"))\"?[[:space:]]*=(.*[[:space:]])?)"
    copy=$(mktemp "$MAP.XXXXXX")
    cp -p "$MAP" "$copy"
    sed -E -e "s#${line}host=[^[:space:]]*#\1host=${TO%:*}#" -e "s#${line}port=[^[:space:]]*#\1port=${TO##*:}#" "$MAP" >"$copy"
    mv "$copy" "$MAP"
    for pooler in "${POOLERS[@]}"; do
        admin "$pooler" RELOAD >/dev/null
        found=$(homes "$pooler")
        if grep -qv " $TO .$" <<<"$found"; then
            die "after RELOAD the pooler at $pooler has:" "$found" "Does it read $MAP, and has each line a port?"
        fi
    done
}

resume() {
    local pooler name where paused found
    for pooler in "${POOLERS[@]}"; do
        found=$(homes "$pooler")
        while read -r name where paused; do
            if [ "$where $paused" = "$TO 1" ]; then admin "$pooler" "RESUME \"$name\"" </dev/null >/dev/null; fi
        done <<<"$found"
    done
    CLIENTS_WAIT=''
}

# Makes the empty NAME_coming, with the encoding, owner, settings and rights of a database at the source.
create_coming() { # database at the source
    if has "$TO" "${NAME}_coming"; then ask "$TO" postgres "DROP DATABASE \"${NAME}_coming\" WITH (FORCE)"; fi
    apart program pg_dump "$FROM" --create --schema-only --section=pre-data --lock-wait-timeout=5s -d "$1" |
        apart sed -nE "/^(CREATE|ALTER|GRANT|REVOKE|COMMENT ON).*DATABASE \"?$1\"?[ ;]/s/DATABASE \"?$1\"?([ ;])/DATABASE \"${NAME}_coming\"\1/p" |
        apart sql "$TO" postgres
}

# Copies a database into NAME_coming.
fill_coming() { # database, options of pg_dump
    apart program pg_dump "$FROM" -Fc --no-subscriptions "${@:2}" -d "$1" |
        apart program pg_restore "$TO" --exit-on-error -d "${NAME}_coming"
}

# The twin, NAME_coming, becomes the home; first the old home is closed.
arrive() {
    has "$TO" "$NAME" && return
    allow "$FROM" "${NAME}_moved" false
    sql "$TO" "${NAME}_coming" >/dev/null <<'SQL' || die "the grants could not be renewed in ${NAME}_coming at $TO"
SELECT once.grant_role(r.oid, g.kind) FROM once.role_grant g JOIN pg_roles r ON r.rolname = g.role_name;
SQL
    rename "$TO" "${NAME}_coming" "$NAME"
}

old_homes() {
    note "done. When you have seen that all is well:"
    for name in "${NAMES[@]}"; do
        if has "$FROM" "${name}_moved"; then note "  at $FROM: DROP DATABASE \"${name}_moved\";"; fi
    done
}

# split -----------------------------------------------------------------------------------------

check_split() {
    if [ ! -e "$DATA/PG_VERSION" ]; then
        if [ -L "$DATA" ] || mountpoint -q "$DATA"; then die "$DATA is a link or a mount point" "Name a directory below it."; fi
        if [ -n "$(ls -A "$DATA" 2>/dev/null)" ]; then die "$DATA is there, and is no cluster"; fi
    fi
    sql "$FROM" 'dbname=replication replication=true' IDENTIFY_SYSTEM >/dev/null ||
        die "$FROM does not let this machine in for replication" "Its pg_hba.conf needs a line: host replication ${PGUSER:-$(id -un)} ADDRESS/32 scram-sha-256"
}

copy_cluster() {
    if [ -e "$DATA/PG_VERSION" ]; then return; fi
    ask "$FROM" postgres "SELECT pg_create_physical_replication_slot('$SLOT', true)
        WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '$SLOT')" >/dev/null
    rm -rf "$DATA.coming"
    program pg_basebackup "$FROM" -D "$DATA.coming" -S "$SLOT" -X stream -c fast -R -P
    mv -T "$DATA.coming" "$DATA"
}

is_ready() {
    pg_ctl -D "$DATA" status >/dev/null || die "the copy does not run: see $DATA.log, or the server's own log"
    if ! pg_isready -h "${TO%:*}" -p "${TO##*:}" -q; then echo "starts" && return 1; fi
}

start_copy() {
    if ! pg_ctl -D "$DATA" status >/dev/null; then
        pg_ctl -D "$DATA" -w -t 3600 -l "$DATA.log" -o "-p ${TO##*:} $OPTIONS" start >/dev/null 9>&- || true
    fi
    # The copy may have been started by an earlier run.
    until_true "the copy" is_ready
    local found there
    found=$(ask "$FROM" postgres 'SELECT system_identifier FROM pg_control_system()')
    is_true "$TO" postgres "SELECT system_identifier = $found FROM pg_control_system()" || die "$TO is no copy of $FROM"
    found=$(offered "$FROM")
    there=$(offered "$TO")
    [ "$found" = "$there" ] || die "pg_once is not installed on this machine as at $FROM" "Install the same version, and run the command again."
    if is_standby; then
        found=$(ask "$TO" postgres 'SHOW synchronous_standby_names')
        [ -z "$found" ] || die "$TO would wait for the standbys of $FROM: $found" \
            "At $TO: ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf(); then run the command again."
    else
        # An earlier run has promoted the copy. Before that, it renamed at the source the databases that it moved. A
        # database that still has its name at the source was not moved then. Since the promotion the copy does not get
        # the writes to that database.
        found=$(ask "$FROM" postgres "SELECT string_agg(datname, ' ') FROM pg_database WHERE datname IN ($LIST)")
        [ -z "$found" ] || die "$TO was promoted before, and has no copy of today's $found" \
            "A cluster is split off once: use move-logical, or split to a new cluster."
    fi
}

is_standby() { is_true "$TO" postgres 'SELECT pg_is_in_recovery()'; }

# Whether the copy has replayed up to `$1`.
has_replayed() {
    local behind
    is_standby || die "$TO was promoted meanwhile" "If an earlier run did it, run the command again. Else it may lack commits: docs/how-to/shards.md."
    behind=$(ask "$TO" postgres "SELECT greatest(pg_wal_lsn_diff('$1', pg_last_wal_replay_lsn()), 0)") || exit 2
    echo "$behind bytes"
    [ "$behind" -le 0 ]
}
follow() {
    is_standby || return 0
    catch_up "the copy is behind by" has_replayed
}
# Catches up in rounds, until a round takes at most 3 s: then the last round, for which clients wait, is short, too. If
# clients wait already, there is only one round.
catch_up() { # WHAT, command
    local begin
    while
        begin=$SECONDS
        until_true "$1" "$2" "$(end_of_log)"
        [ -z "$CLIENTS_WAIT" ] && [ $((SECONDS - begin)) -gt 3 ]
    do :; done
}
end_of_log() { ask "$FROM" postgres 'SELECT pg_current_wal_flush_lsn()'; }

promote() {
    is_standby || return 0
    until_true "the copy is behind by" has_replayed "$(end_of_log)"
    ask "$TO" postgres 'SELECT pg_promote(true, 600)' >/dev/null
}

# Undoes the renames that the copy has replayed.
names() {
    local name
    for name in "${NAMES[@]}"; do
        has "$TO" "$name" || rename "$TO" "${name}_moved" "$name"
        allow "$TO" "$name" true
    done
}

# Closes the copies, at the target, of the databases that stay at the source.
fence_copies() {
    local name staying
    staying=$(ask "$FROM" postgres "SELECT quote_literal(datname) FROM pg_database WHERE datallowconn AND NOT datistemplate
        AND datname <> 'postgres' AND datname !~ '_moved$'") || exit 2
    staying=$(ask "$TO" postgres "SELECT datname FROM pg_database WHERE datname IN (NULL${staying:+,}${staying//$'\n'/,})") || exit 2
    while read -r name; do
        [ -n "$name" ] || continue
        allow "$TO" "$name" false
        end_sessions "$TO" "$name"
        rename "$TO" "$name" "${name}_moved" || note "$name keeps its name in the copy, closed"
    done <<<"$staying"
}

split() {
    local name
    step "look whether ${NAMES[*]} can go from $FROM to $TO. Nothing is changed."
    check
    if [ -n "$SERVED" ]; then
        NUMBER=$((${#STEPS[@]} - 1))
    else
        check_split
        step "copy the whole cluster at $FROM to $DATA; a replication slot, $SLOT, keeps the WAL for it."
        copy_cluster
        step "start the copy as a standby on port ${TO##*:}. If it does not come up, look at $DATA.log, listen_addresses and hot_standby."
        start_copy
        step "wait until the copy has caught up. Where it stands still, the log of $TO says why."
        follow
        step "PAUSE ${NAMES[*]} at the pooler. Clients wait from here to step 10. Steps up to 10 ask no question."
        # The operator's yes may have taken long, so the copy may be behind again.
        [ -n "$CLIENTS_WAIT" ] || follow
        pause
        step "at $FROM, end the sessions of ${NAMES[*]} and rename them to NAME_moved, closed."
        for name in "${NAMES[@]}"; do
            if has "$FROM" "$name"; then fence "$name"; fi
        done
        step "wait until the copy has everything, and promote it."
        promote
        step "in the copy, give ${NAMES[*]} their names again."
        names
        step "send ${NAMES[*]} to $TO in $MAP, and RELOAD the pooler."
        map
        step "RESUME ${NAMES[*]} at the pooler."
        resume
    fi
    step "at $TO, close the copies of the databases that stay at $FROM, and rename each to NAME_moved; drop the slot $SLOT at $FROM."
    # First the copies are closed, then the slot is dropped. A run that dropped the slot has closed the copies. Since
    # then the target may have got a new home with the name of a database at the source. That home must stay open.
    if is_true "$FROM" postgres "SELECT EXISTS (SELECT $OUR_SLOT)"; then
        fence_copies
        ask "$FROM" postgres "SELECT pg_drop_replication_slot('$SLOT')" >/dev/null
    else
        note "done before: the slot is gone. If others dropped it, see that no copy at $TO is open under its old name."
    fi
    old_homes
    note "  at $TO: the databases with names in _moved, copies of those that stayed at $FROM."
}

# move-dump -------------------------------------------------------------------------------------

# Prints the progress every five seconds, as long as the script runs.
report() { # database that is dumped
    local begin=$SECONDS whole
    whole=$(size "$FROM" "$1")
    note "$1 has $whole; a restored copy is often smaller"
    while sleep 5 >/dev/null 2>&1 && kill -0 $$; do
        note "$((SECONDS - begin)) s: ${NAME}_coming has $(size "$TO" "${NAME}_coming") of $whole"
    done
}

carry() {
    has "$TO" "$NAME" && return
    allow "$FROM" "${NAME}_moved" true
    create_coming "${NAME}_moved"
    report "${NAME}_moved" 9>&- &
    REPORTER=$!
    fill_coming "${NAME}_moved"
    end_report
}

# The three steps before the last one, the same in move-dump and move-logical.
switch() {
    step "close ${NAME}_moved for good, and rename ${NAME}_coming at $TO to $NAME."
    arrive
    step "send $NAME to $TO in $MAP, and RELOAD the pooler."
    map
    step "RESUME $NAME at the pooler."
    resume
}

move_dump() {
    step "look whether $NAME can go from $FROM to $TO. Unless clients wait, its tables are tried in ${NAME}_coming at $TO, which is dropped again."
    check
    check_target
    if [ -n "$SERVED" ]; then
        NUMBER=$((${#STEPS[@]} - 1))
    else
        step "PAUSE $NAME at the pooler. Clients wait from here to step 7. Steps up to 7 ask no question."
        pause
        step "at $FROM, end the sessions of $NAME and rename it to ${NAME}_moved, closed to clients."
        if has "$FROM" "$NAME"; then fence "$NAME"; fi
        step "dump ${NAME}_moved and restore it as ${NAME}_coming at $TO."
        carry
        switch
    fi
    step "gather statistics for the planner in $NAME at $TO."
    ask "$TO" "$NAME" ANALYZE
    old_homes
}

# move-logical ----------------------------------------------------------------------------------

check_logical() {
    local bad
    if [ -n "$FENCED" ]; then return; fi
    is_true "$FROM" postgres "SELECT current_setting('wal_level') = 'logical'" || die "wal_level at $FROM is not logical"
    bad=$(ask "$FROM" "$NAME" "SELECT string_agg(c.oid::regclass::text, ' ') FROM pg_class c
        WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND c.oid >= 16384 AND NOT CASE c.relreplident
            WHEN 'd' THEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
            WHEN 'i' THEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
            ELSE c.relreplident = 'f' END") || exit 2
    [ -z "$bad" ] || die "these have no replica identity, and their updates would fail: $bad" "Give each a primary key that is not deferrable, or ALTER TABLE ... REPLICA IDENTITY FULL."
    bad=$(ask "$FROM" "$NAME" "SELECT count(*) FROM pg_largeobject_metadata") || exit 2
    [ "$bad" = 0 ] || die "large objects are not replicated" "Use move-dump."
}

is_subscribed() { is_true "$TO" "${NAME}_coming" "SELECT EXISTS (SELECT FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid WHERE d.datname = '${NAME}_coming')"; }

twin() {
    if has "$TO" "${NAME}_coming" && is_subscribed; then return; fi
    local schema
    create_coming "$NAME"
    # The whole dump is read before the transaction begins: else a dump that fails half-way would be committed.
    # Debian's PostgreSQL 15 sets an option pg_attver on columns. Here sed removes the option: other servers refuse it.
    schema=$(exec 9>&-; program pg_dump "$FROM" --schema-only --lock-wait-timeout=5s --no-publications --no-subscriptions -d "$NAME" |
        sed -E '/^ALTER .* SET \(pg_attver=[0-9]+\);$/d; /^ALTER .* SET \(/s/, pg_attver=[0-9]+|pg_attver=[0-9]+, //')
    psql -w -X -q -1 -v ON_ERROR_STOP=1 -h "${TO%:*}" -p "${TO##*:}" -d "${NAME}_coming" <<<"$schema" >/dev/null 9>&-
}

connection() { echo "host=''${FROM%:*}'' port=${FROM##*:} user=''${PGUSER:-$(id -un)}'' dbname=''$1''"; }

subscribe() {
    if is_subscribed; then
        # A run that stopped at the fence may have disabled the subscription.
        ask "$TO" "${NAME}_coming" "ALTER SUBSCRIPTION $PUBLICATION ENABLE"
        return
    fi
    # This fails, as NAME_moved does not exist yet. The error shows whether the subscription will be let into it.
    let_in "the server $TO into ${NAME}_moved at $FROM" "$(exec 9>&-; sql "$TO" "${NAME}_coming" "CREATE SUBSCRIPTION ${PUBLICATION}_try
        CONNECTION '$(connection "${NAME}_moved")' PUBLICATION $PUBLICATION WITH (create_slot = false, slot_name = NONE, enabled = false)" 2>&1 || true)"
    # The publication comes first: the slot must begin after it in the WAL.
    is_true "$FROM" "$NAME" "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = '$PUBLICATION')" ||
        ask "$FROM" "$NAME" "CREATE PUBLICATION $PUBLICATION FOR ALL TABLES"
    ask "$FROM" "$NAME" "SELECT pg_create_logical_replication_slot('$SLOT', 'pgoutput')
        WHERE NOT EXISTS (SELECT $OUR_SLOT)" >/dev/null
    ask "$TO" "${NAME}_coming" "CREATE SUBSCRIPTION $PUBLICATION CONNECTION '$(connection "$NAME")' PUBLICATION $PUBLICATION
        WITH (create_slot = false, slot_name = '$SLOT')"
}

has_slot() {
    is_true "$FROM" postgres "SELECT EXISTS (SELECT $OUR_SLOT AND wal_status IS DISTINCT FROM 'lost')" ||
        die "$FROM has lost the slot $SLOT" "Give the move up, and begin it again: docs/how-to/shards.md."
}

is_copied() {
    local answer
    has_slot
    answer=$(ask "$TO" "${NAME}_coming" "SELECT count(*) FILTER (WHERE srsubstate = 'r') || ' of ' || count(*) FROM pg_subscription_rel") || exit 2
    echo "$answer tables, $(size "$TO" "${NAME}_coming")"
    [ "${answer% of *}" = "${answer#* of }" ]
}

# Whether the twin has confirmed up to `$1`.
has_confirmed() {
    local behind
    has_slot
    behind=$(ask "$FROM" postgres "SELECT greatest(pg_wal_lsn_diff('$1', confirmed_flush_lsn), 0) $OUR_SLOT") || exit 2
    echo "$behind bytes"
    [ "$behind" -le 0 ]
}
# Also copies tables that were created meanwhile in both databases; a table that the twin lacks is an error.
copy_tables() {
    ask "$TO" "${NAME}_coming" "ALTER SUBSCRIPTION $PUBLICATION REFRESH PUBLICATION"
    until_true "copied" is_copied
}
copy_rows() {
    copy_tables
    catch_up "the twin is behind by" has_confirmed
}

fence_publisher() {
    has "$FROM" "$NAME" || return 0
    # Else the subscription would try the old name once more, and then wait for seconds.
    ask "$TO" "${NAME}_coming" "ALTER SUBSCRIPTION $PUBLICATION DISABLE"
    fence "$NAME"
}

drain() {
    if has "$TO" "$NAME" || ! is_subscribed; then return; fi
    allow "$FROM" "${NAME}_moved" true
    ask "$TO" "${NAME}_coming" "ALTER SUBSCRIPTION $PUBLICATION CONNECTION '$(connection "${NAME}_moved")'"
    ask "$TO" "${NAME}_coming" "ALTER SUBSCRIPTION $PUBLICATION ENABLE"
    copy_tables
    until_true "the twin is behind by" has_confirmed "$(end_of_log)"
}

# Sets the sequences, which are not replicated, drops the subscription, and renews the incarnation.
finish() {
    if has "$TO" "$NAME"; then return; fi
    allow "$FROM" "${NAME}_moved" true
    sql "$FROM" "${NAME}_moved" "SELECT format('SELECT format(''SELECT pg_catalog.setval(%%L, %%s, %%L);'', %L, last_value, is_called) FROM %s;', s, s)
        FROM (SELECT format('%I.%I', schemaname, sequencename) AS s FROM pg_sequences) q" |
        sql "$FROM" "${NAME}_moved" | sql "$TO" "${NAME}_coming" >/dev/null
    if is_subscribed; then
        # In one transaction: a killed run must not leave a subscription without a slot, which cannot be enabled again.
        ask "$TO" "${NAME}_coming" "ALTER SUBSCRIPTION $PUBLICATION DISABLE;
            ALTER SUBSCRIPTION $PUBLICATION SET (slot_name = NONE); DROP SUBSCRIPTION $PUBLICATION"
    fi
    ask "$TO" "${NAME}_coming" 'SELECT once.incarnation_renew()' >/dev/null
}

is_slot_dropped() {
    ask "$FROM" postgres "SELECT pg_terminate_backend(active_pid) $OUR_SLOT AND active" >/dev/null
    sql "$FROM" postgres "SELECT pg_drop_replication_slot(slot_name) $OUR_SLOT" 2>/dev/null
}

move_logical() {
    step "look whether $NAME can go from $FROM to $TO. Nothing is changed."
    check
    check_target
    check_logical
    if [ -n "$SERVED" ]; then
        NUMBER=$((${#STEPS[@]} - 1))
    else
        step "make ${NAME}_coming at $TO, with the tables of $NAME and no rows."
        [ -n "$FENCED" ] || twin
        step "publish $NAME, and subscribe ${NAME}_coming to it; the slot $SLOT keeps the WAL for it. Open transactions must end first."
        [ -n "$FENCED" ] || subscribe
        step "wait until ${NAME}_coming has a copy of each table, and has caught up. Where it stands still, the logs of $TO and $FROM say why."
        [ -n "$FENCED" ] || copy_rows
        step "gather statistics for the planner in ${NAME}_coming."
        [ -n "$FENCED" ] || ask "$TO" "${NAME}_coming" ANALYZE
        step "PAUSE $NAME at the pooler. Clients wait from here to step 12. Steps up to 12 ask no question."
        # The operator's yes may have taken long, so the twin may be behind again.
        [ -n "$FENCED$CLIENTS_WAIT" ] || copy_rows
        pause
        step "at $FROM, end the sessions of $NAME and rename it to ${NAME}_moved, closed to clients."
        fence_publisher
        step "wait until the twin has everything. Where it stands still, the logs of $TO and $FROM say why."
        drain
        step "set the sequences of the twin, end its subscription, and renew its incarnation."
        finish
        switch
    fi
    step "drop the slot $SLOT at $FROM."
    until_true "the slot is in use" is_slot_dropped
    old_homes
}

"${COMMAND/-/_}"
