#!/usr/bin/env bash
# make package [PG_CONFIG=...]: a tarball with the library, the control file and the SQL files.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh

say "Packaging pg_once $(pg_once_version)"
need_rust
need_c_toolchain
need_cargo_pgrx
if [ -n "${PG_CONFIG:-}" ]; then
    config=$PG_CONFIG
    version=$(major_version "$config")
    [ -n "$version" ] || die "$config cannot be run" "Run: make package PG_CONFIG=/path/to/pg_config"
else
    need_any_server
    config=$CHOSEN_PG_CONFIG version=$CHOSEN
fi
has_headers "$config" || die "the server's headers are missing in $("$config" --includedir-server)" \
    "Run: sudo apt-get install postgresql-server-dev-$version"

name=pg_once-$(pg_once_version)-pg$version-$(uname -m)
out=$ROOT/target/package
rm -rf "$out/build" "${out:?}/$name"
mkdir -p "$out/$name/lib" "$out/$name/extension"
pgrx_env "$version" "$(headers_for "$version" "$config")"
cargo pgrx package --package pg_once --no-default-features --features "pg$version" \
    --pg-config "$config" --out-dir "$out/build"
find "$out/build" -name '*.so' -exec cp {} "$out/$name/lib/" \;
find "$out/build" \( -name '*.control' -o -name '*.sql' \) -exec cp {} "$out/$name/extension/" \;
for file in LICENSE README.md CHANGELOG.md; do
    if [ -e "$file" ]; then cp "$file" "$out/$name/"; fi
done
cat >"$out/$name/INSTALL" <<END
pg_once $(pg_once_version) for PostgreSQL $version on $(uname -m). As root:

    cp lib/* "\$(pg_config --pkglibdir)/"
    cp extension/* "\$(pg_config --sharedir)/extension/"

and then, in each database that wants it: CREATE EXTENSION pg_once;
END
for part in lib/*.so extension/*.control extension/*.sql; do
    compgen -G "$out/$name/$part" >/dev/null || die "the package has no $part"
done
tar -C "$out" --owner 0 --group 0 -czf "$out/$name.tar.gz" "$name"
rm -rf "$out/build"
tar -tzf "$out/$name.tar.gz" | sed 's/^/    /'
note "written: target/package/$name.tar.gz"
