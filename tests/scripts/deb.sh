# shellcheck shell=bash
# The Debian package postgresql-MAJOR-pg-once, laid out by hand from staged files and built with
# dpkg-deb: no source package, no debhelper. Sourced after extension.sh.
#
# To distribute the package, set DEBFULLNAME and DEBEMAIL, as for any Debian package.

CLUSTER=pg_once_test
DEB_MAINTAINER="${DEBFULLNAME:-pg_once maintainers} <${DEBEMAIL:-pg-once@example.org}>"

# The pg_config of the newest server with headers in Debian's directories on this machine.
debian_server() {
    local version config
    for version in 18 17 16 15; do
        config=/usr/lib/postgresql/$version/bin/pg_config
        if [ -x "$config" ] && has_headers "$config"; then
            echo "$config"
            return
        fi
    done
    return 1
}

deb_name() { echo "postgresql-$1-pg-once"; }

# The package's version: the crate's version, and the revision of the packaging.
deb_version() { echo "${DEB_VERSION:-$(pg_once_version)-1}"; }

deb_file() { echo "$(deb_name "$1")_$(deb_version)_$(dpkg --print-architecture).deb"; }

# Lists pg_once's files in Debian's directories, whether a package put them there or not. The files of the test's
# cluster (CLUSTER) are left out.
ours_on_disk() {
    find /usr/lib/postgresql /usr/share/postgresql /usr/share/doc /etc/postgresql /var/lib/postgresql \
        -iname '*pg[_-]once*' -not -path "*/$CLUSTER*" 2>/dev/null || true
}

# `make_deb major stage directory`: builds the package of the staged files, and puts it into the directory.
make_deb() {
    local version=$1 stage=$2 out=$3 root doc name
    have dpkg-deb || die "make deb needs Debian's dpkg-deb"
    have dpkg-shlibdeps || apt_install dpkg-dev binutils || die "dpkg-shlibdeps is missing" "Run: sudo apt-get install dpkg-dev"
    name=$(deb_name "$version")
    root=$out/deb-$version
    doc=$root/usr/share/doc/$name
    rm -rf "$root" "${out:?}/$(deb_file "$version")"
    mkdir -p "$root/DEBIAN" "$root/usr/lib/postgresql/$version/lib" "$root/usr/share/postgresql/$version/extension" "$doc"
    install -m 0644 "$stage"/lib/*.so "$root/usr/lib/postgresql/$version/lib/"
    strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/usr/lib/postgresql/$version/lib/"*.so
    install -m 0644 "$stage"/extension/* "$root/usr/share/postgresql/$version/extension/"
    copy_documents "$doc"
    deb_copyright "$version" >"$doc/copyright"
    gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
    rm "$doc/CHANGELOG.md"
    deb_changelog "$version" | gzip -9n >"$doc/changelog.Debian.gz"
    # The usual modes, whatever the umask; a script of the examples stays executable.
    chmod -R u=rwX,go=rX "$root"
    deb_prerm "$version" >"$root/DEBIAN/prerm"
    chmod 0755 "$root/DEBIAN/prerm"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    deb_control "$version" "$root" >"$root/DEBIAN/control"
    chmod 0644 "$root/DEBIAN/md5sums" "$root/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$root" "$out/$(deb_file "$version")" >/dev/null
    rm -rf "$root"
    dpkg-deb --contents "$out/$(deb_file "$version")" | awk '!/\/$/ { print "    " $6 }'
    note "written: ${out#"$ROOT"/}/$(deb_file "$version")"
}

deb_control() {
    local version=$1 root=$2
    cat <<END
Package: $(deb_name "$version")
Version: $(deb_version)
Architecture: $(dpkg --print-architecture)
Maintainer: $DEB_MAINTAINER
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Depends: postgresql-$version, $(deb_libraries "$root")
Section: database
Priority: optional
Description: retries that converge, for PostgreSQL $version
 pg_once makes retries safe inside PostgreSQL. Idempotency keys have leases,
 recovery points and stored answers. Machines declare the states and moves of a
 table's rows. Events commit with the transaction that emits them, and are
 delivered under leases with retries. A request that is sent twice, a worker
 that dies half-way and a client that never hears the answer all end in one
 result.
 .
 After the installation: CREATE EXTENSION pg_once, in each database that wants
 it.
END
}

# The libraries that the extension links to, as package names with versions. dpkg-shlibdeps needs the control file of a
# source package, so one is written first.
deb_libraries() {
    local root=$1 work
    work=$(mktemp -d)
    mkdir "$work/debian"
    printf 'Source: pg-once\n\nPackage: pg-once\nArchitecture: any\n' >"$work/debian/control"
    (cd "$work" && dpkg-shlibdeps -O -e"$(find "$root" -name '*.so')" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
    rm -rf "$work"
}

# Prints the prerm script, which names the servers that would not start without the package. It never stops a removal.
deb_prerm() {
    local version=$1
    cat <<END
#!/bin/sh
# A server that preloads the library does not start without it, so warn before the removal.
set -e
if [ "\$1" = remove ]; then
    for conf in /etc/postgresql/$version/*/postgresql.conf; do
        [ -e "\$conf" ] || continue
        dir=\$(dirname "\$conf")
        auto=\$(sed -n "s/^data_directory *= *'\([^']*\)'.*/\1/p" "\$conf")/postgresql.auto.conf
        if grep -qsE '^[[:space:]]*shared_preload_libraries[^#]*pg_once' "\$conf" "\$dir"/conf.d/*.conf "\$auto"; then
            echo "pg_once: cluster $version/\$(basename "\$dir") has pg_once in shared_preload_libraries" \\
                "and will not start again until you take pg_once out." >&2
        fi
    done
fi
exit 0
END
}

# One entry for this version, and one for each other version with a date in CHANGELOG.md.
deb_changelog() {
    local name version date
    name=$(deb_name "$1")
    date=$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}")
    deb_entry "$name" "$(deb_version)" "$date"
    sed -n 's/^## \[\([0-9][0-9.]*\)\] - \([0-9-]*\)$/\1 \2/p' CHANGELOG.md | while read -r version date; do
        [ "$version" = "$(pg_once_version)" ] || deb_entry "$name" "$version-1" "$(date -R -u -d "$date")"
    done
}

deb_entry() {
    printf '%s (%s) unstable; urgency=medium\n\n  * pg_once %s; what changed is in changelog.gz.\n\n -- %s  %s\n\n' \
        "$1" "$2" "${2%-*}" "$DEB_MAINTAINER" "$3"
}

# Our licence, and those of the crates that are linked into the library.
deb_copyright() {
    local crate licence
    cat <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: pg_once

Files: *
Copyright: $(sed -n 's/^Copyright (c) //p' LICENSE | head -1)
License: PostgreSQL
$(tail -n +5 LICENSE | sed 's/^$/./; s/^/ /')

Files: usr/lib/*
Copyright: $(sed -n 's/^Copyright (c) //p' LICENSE | head -1), and the authors of these crates
License: PostgreSQL and others
 The library contains code of the Rust crates below, under the licences that they name; where
 there is a choice we take MIT, else Apache-2.0 (/usr/share/common-licenses/Apache-2.0).
 .
END
    cargo tree --package pg_once --no-default-features --features "pg$1" --edges normal,no-proc-macro \
        --prefix none --no-dedupe --format '{p}|{l}' | sed 's/ (.*)|/|/' | sort -u | while IFS='|' read -r crate licence; do
        case $crate in pg_once*) ;; *) printf ' %s: %s\n' "$crate" "$licence" ;; esac
    done
    cat <<END
 .
$(deb_mit)
END
}

deb_mit() {
    sed 's/^$/./; s/^/ /' <<'END'
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
END
}
