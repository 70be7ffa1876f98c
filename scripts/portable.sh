#!/usr/bin/env bash
# Compiles tandem for machines other than this one, and runs what can be run here. By hand, not in CI.
#
#   scripts/portable.sh macos   type-checks every crate and its tests for Apple silicon; links and runs nothing
#   scripts/portable.sh arm64   builds `tandem` for arm64 Linux, runs the tests of the pure crates under emulation,
#                               and hands KV from an emulated node to one of this machine, over TLS
#
# Needs root (it makes a Debian of its own and mounts folders there), x86-64 Debian with `mmdebstrap`, and 8 GB of disk.
# The first time it takes 5 minutes for that Debian, and 20 (macos) or 40 (arm64) for the rest on two idle cores.
# All of it lies below TANDEM_PORTABLE, else ~/.cache/tandem/portable, where it can be removed once nothing is mounted
# there: the mounts are this script's own and end with it.
# `arm64` needs `make build` first: it takes the `tandem` below CARGO_TARGET_DIR, else target/, as the other node.
set -euo pipefail

# The compiler of this release can compile the standard library for macOS: its sources fit it.
readonly SUITE=forky
readonly LINUX=aarch64-unknown-linux-gnu MAC=aarch64-apple-darwin
readonly PURE=(handoff proto sched api grading)
readonly HEADERS=ziglang==0.17.0

give_up() {
    echo "portable: $1" >&2
    exit 1
}

say() { echo "portable: $*"; }

target="${1:-}"
case "$target" in
macos | arm64) ;;
*)
    echo "usage: scripts/portable.sh arm64|macos" >&2
    exit 2
    ;;
esac
[[ "$(id -u)" == 0 ]] || give_up "needs root: it makes a Debian of its own and mounts folders there"
command -v mmdebstrap >/dev/null || give_up "run: apt-get install mmdebstrap"

# Mounts and processes of a namespace end with it, however this script ends.
if [[ -z "${PORTABLE_INSIDE:-}" ]]; then
    PORTABLE_INSIDE=1 exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi

sources="$(cd "$(dirname "$0")/.." && pwd)"
work="${TANDEM_PORTABLE:-$HOME/.cache/tandem/portable}"
root="$work/$SUITE"
host="${CARGO_TARGET_DIR:-$sources/target}/release/tandem"
mkdir -p "$work"

# The mirror that this machine's own packages come from.
mirror() {
    apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }'
}

# Lists of a testing release expire, also on mirrors that keep them; signatures are still checked.
make_root() {
    local from
    [[ -e "$work/complete" ]] && return 0
    from="$(mirror)"
    [[ -n "$from" ]] || give_up "no Debian among the package sources of this machine"
    rm -rf "$root"
    mmdebstrap --mode=root --variant=apt --architectures=amd64,arm64 \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"' \
        --include=ca-certificates,rustc,cargo,rust-src,libstd-rust-dev:amd64,libstd-rust-dev:arm64 \
        --include=gcc,g++,libc6-dev,crossbuild-essential-arm64,cmake,make,libclang-dev,clang,git,pkgconf,perl \
        --include=python3-minimal,python3-pip,qemu-user \
        "$SUITE" "$root" \
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $SUITE main"
    touch "$work/complete"
}

mount_all() {
    local folder
    mkdir -p "$root"/{src,build,port} "$work/build" "$work/port"
    mount --bind "$sources" "$root/src"
    mount -o remount,bind,ro "$root/src"
    for folder in build port; do mount --bind "$work/$folder" "$root/$folder"; done
    mount -t proc proc "$root/proc"
    mount --bind /dev "$root/dev"
    # Names and certificates as this machine has them, which may be behind a proxy.
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    cp -L "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/certs/ca-certificates.crt"
}

# Runs a command of the other Debian, in the sources.
inside() {
    local certificates=/etc/ssl/certs/ca-certificates.crt
    nice -n 10 chroot "$root" env -i PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 \
        CARGO_HOME=/build/cargo CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_HTTP_CAINFO=$certificates PIP_CERT=$certificates \
        "${variables[@]}" sh -c 'cd /src && exec "$@"' sh "$@"
}

# --- macOS ---

# A check reads no object, so nothing of C is compiled: these stand in for the compilers that build scripts call.
write_stubs() {
    # `cc` asks with -E who the compiler is; bindgen reads the headers by itself.
    cat >"$work/port/cc" <<'STUB'
#!/bin/bash
out=; previous=
for word; do
    [[ "$word" == -E ]] && exec clang --target=arm64-apple-macos11 -isystem /port/include "$@"
    [[ "$previous" == -o ]] && out="$word"
    previous="$word"
done
[[ -z "$out" ]] || : >"$out"
STUB
    cat >"$work/port/ar" <<'STUB'
#!/bin/bash
for word; do case "$word" in *.a) : >"$word"; break ;; esac; done
STUB
    # The build script of llama-cpp-sys-2 wants the libraries that an installation would leave.
    cat >"$work/port/cmake" <<'STUB'
#!/bin/bash
for word; do case "$word" in -DCMAKE_INSTALL_PREFIX=*)
    mkdir -p "${word#*=}/lib"
    for name in llama ggml ggml-base ggml-cpu ggml-metal; do : >"${word#*=}/lib/lib$name.a"; done ;;
esac; done
STUB
    chmod +x "$work/port"/{cc,ar,cmake}
    mkdir -p "$work/port/sdk"
}

# Apple's open headers, as a package of another compiler carries them.
fetch_headers() {
    [[ -d "$work/port/include" ]] && return 0
    inside pip download --quiet --no-deps --dest /port/wheel "$HEADERS"
    inside python3 -c 'import glob, zipfile
with zipfile.ZipFile(glob.glob("/port/wheel/*.whl")[0]) as wheel:
    wheel.extractall("/port/zig", [n for n in wheel.namelist() if "/libc/include/any-darwin-any/" in n])'
    mv "$work"/port/zig/ziglang/lib/libc/include/any-darwin-any "$work/port/include"
}

check_macos() {
    variables=(CARGO_TARGET_DIR=/build/macos RUSTC_BOOTSTRAP=1 SDKROOT=/port/sdk MACOSX_DEPLOYMENT_TARGET=11.0
        CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="-C linker=/bin/false"
        CC_aarch64_apple_darwin=/port/cc CXX_aarch64_apple_darwin=/port/cc AR_aarch64_apple_darwin=/port/ar
        CMAKE_aarch64_apple_darwin=/port/cmake
        BINDGEN_EXTRA_CLANG_ARGS_aarch64_apple_darwin="-isystem /port/include")
    write_stubs
    fetch_headers
    say "$(inside rustc --version), $MAC"
    inside cargo check --locked -Zbuild-std=std,panic_unwind,proc_macro,test --target "$MAC" \
        --workspace --all-targets
    say "every crate, its tests and benches type-check for $MAC; not shown: linking, Metal, running"
}

# --- arm64 Linux ---

build_arm64() {
    # It stands in for the `target-cpu=native` of the configuration, which is this machine's.
    variables=(CARGO_TARGET_DIR=/build/arm64
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C linker=aarch64-linux-gnu-gcc"
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu")
    say "$(inside rustc --version), $LINUX, $(inside qemu-aarch64 --version | head -n 1)"
    inside cargo build --locked --release --target "$LINUX" --package tandem-cli
    emulated --version
}

# Runs the arm64 program.
emulated() {
    inside env TANDEM_DATA=/tmp/arm64 qemu-aarch64 -L /usr/aarch64-linux-gnu \
        "/build/arm64/$LINUX/release/tandem" "$@"
}

test_arm64() {
    local packages=() crate
    for crate in "${PURE[@]}"; do packages+=(--package "tandem-$crate"); done
    inside cargo test --locked --no-fail-fast --target "$LINUX" "${packages[@]}"
}

# Waits until the port of this machine is open, a minute at most.
wait_for() {
    local port="$1" try
    for ((try = 0; try < 600; try++)); do
        (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return 0
        sleep 0.1
    done
    give_up "nothing listens at port $port; look into $work/run"
}

# An arm64 node reads a prompt, a node of this machine answers from its KV; and by itself, to compare.
hand_over() {
    local run="$work/run" route prompt
    [[ -x "$host" ]] || give_up "no $host; run: make build"
    rm -rf "$run" "$root/tmp/arm64"
    mkdir -p "$run"
    export TANDEM_DATA="$run/data"
    "$host" cluster init
    "$host" cluster invite --listen 127.0.0.1:17300 >"$run/token" 2>"$run/invite.log" &
    for ((try = 0; try < 600; try++)); do
        token="$(grep -oE '[^ ]{40,}' "$run/token" | head -n 1 || true)"
        [[ -n "$token" ]] && break
        sleep 0.1
    done
    [[ -n "$token" ]] || give_up "no token of the cluster; look into $run/invite.log"
    emulated cluster join "$token"
    emulated node --role prefill --model code=/src/models/nano-coder.gguf \
        --listen 127.0.0.1:17001 --handoff 127.0.0.1:17003 >"$run/arm64.log" 2>&1 &
    "$host" node --role decode --model "code=$sources/models/nano-coder.gguf" \
        --listen 127.0.0.1:17002 --handoff 127.0.0.1:17004 >"$run/host.log" 2>&1 &
    wait_for 17001
    wait_for 17002
    cat >"$run/tandem.toml" <<'CONFIG'
[[node]]
name = "arm64"
address = "127.0.0.1:17001"
[[node]]
name = "host"
address = "127.0.0.1:17002"
[[model]]
name = "code"
prefill = ["arm64"]
decode = ["host"]
CONFIG
    prompt="Explain each function. $(head -c 1500 "$sources/crates/handoff/src/frame.rs")"
    for route in remote local; do
        "$host" run --config "$run/tandem.toml" --model code --route "$route" --max-tokens 32 "$prompt" \
            >"$run/$route.txt" 2>"$run/$route.log"
    done
    cat "$run/remote.log" "$run/remote.txt"
    cmp "$run/remote.txt" "$run/local.txt" && say "the text is that of a local prefill" ||
        say "the texts part: two kinds of processor round differently"
}

make_root
mount_all
variables=()
case "$target" in
macos) check_macos ;;
arm64)
    build_arm64
    hand_over
    test_arm64
    ;;
esac
