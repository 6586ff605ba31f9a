#!/usr/bin/env bash
# Sets up what is missing: Rust, cargo-pgrx, libclang, and private copies of the servers.
# Arguments: the server versions wanted; without any, those that `make test` tests.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh

say "Setting up"
note "state: $STATE; servers run as the OS user $SERVER_USER"
need_rust
need_c_toolchain
need_cargo_pgrx
note "$(cargo-pgrx pgrx --version)"
if [ $# = 0 ]; then
    # shellcheck disable=SC2046
    set -- $(default_versions)
fi
failed=0
for version in "$@"; do need_server "$version" || failed=1; done
[ "$failed" = 0 ] || die "not every server could be had; the commands that would help are above"
note "ready"
