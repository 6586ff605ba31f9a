#!/usr/bin/env bash
# make install PG_CONFIG=...: builds the extension (release) and installs it into that server.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh

config=${PG_CONFIG:-$(command -v pg_config || true)}
[ -n "$config" ] || die "no pg_config on PATH" "Run: make install PG_CONFIG=/path/to/pg_config"
have "$config" || die "$config cannot be run" "Run: make install PG_CONFIG=/path/to/pg_config"
config=$(command -v "$config")

say "Installing pg_once $(pg_once_version) into the server of $config ($("$config" --version))"
need_rust
need_c_toolchain
need_cargo_pgrx
install_extension "$config"
note "in any database of that server: CREATE EXTENSION pg_once;"
