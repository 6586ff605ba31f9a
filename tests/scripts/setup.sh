#!/usr/bin/env bash
# Sets up what is missing: Rust, cargo-pgrx, libclang, and private copies of the servers. Arguments: the server versions
# wanted; without arguments, the versions that `make test` and `make test-matrix` test.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh

say "Setting up"
note "state: $STATE; servers run as the OS user $SERVER_USER"
need_rust
need_c_toolchain
need_cargo_pgrx
note "$(cargo pgrx --version)"
# Each named version must be available. Of the default versions, one is enough, except in CI.
strict=$#
if [ "$strict" = 0 ]; then
    # shellcheck disable=SC2046
    set -- $(default_versions)
fi
had=0
for version in "$@"; do if need_server "$version"; then had=$((had + 1)); fi; done
if [ "$had" = 0 ] || { [ "$had" -lt $# ] && { [ "$strict" != 0 ] || is_ci; }; }; then
    die "not every server is available; see the commands above"
fi
note "ready"
