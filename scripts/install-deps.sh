#!/usr/bin/env bash
# Installs what the build needs and this machine lacks.
#
#   scripts/install-deps.sh build   cmake and a C++ compiler (llama.cpp), libclang (bindgen)
#   scripts/install-deps.sh test    the same, Python with venv (the official OpenAI client), and Chromium with its
#                                   driver (the pages; CHROMEDRIVER and CHROMIUM name others)
#
# Uses apt, dnf or brew; sudo only if it is needed and there. Otherwise prints what to run and fails.
# With TANDEM_DEPS=print it only prints what is missing, and installs nothing.
set -euo pipefail

purpose="${1:-build}"
missing=() # cmake, compiler, libclang, python, browser

has() { command -v "$1" >/dev/null 2>&1; }

has_compiler() { has c++ || has g++ || has clang++; }

# A library without clang's own headers, as libclang1 installs it, is not enough: bindgen then finds no stddef.h.
has_libclang() {
    [[ -n "${LIBCLANG_PATH:-}" ]] && return 0
    has_libclang_library && { [[ "$(uname -s)" != Linux ]] || has_clang_headers; }
}

has_clang_headers() {
    local file
    for file in /usr/lib/llvm*/lib/clang/*/include/stddef.h /usr/lib/clang/*/include/stddef.h \
        /usr/lib64/clang/*/include/stddef.h /usr/lib64/llvm*/lib/clang/*/include/stddef.h \
        /usr/local/lib/clang/*/include/stddef.h; do
        [[ -e "$file" ]] && return 0
    done
    return 1
}

has_libclang_library() {
    local file
    for file in /usr/lib/libclang*.so* /usr/lib/*/libclang*.so* /usr/lib64/libclang*.so* \
        /usr/lib64/llvm*/lib/libclang*.so* /usr/lib/llvm*/lib/libclang*.so* /usr/local/lib/libclang*.so* \
        /Library/Developer/CommandLineTools/usr/lib/libclang.dylib \
        /Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib/libclang.dylib \
        /opt/homebrew/opt/llvm/lib/libclang.dylib /usr/local/opt/llvm/lib/libclang.dylib; do
        # libclang-cpp is another library.
        [[ -e "$file" && "$file" != *libclang-cpp* ]] && return 0
    done
    return 1
}

has_python() { has python3 && python3 -c 'import venv, ensurepip' >/dev/null 2>&1; }

has_browser() { has "${CHROMEDRIVER:-chromedriver}"; }

find_missing() {
    has cmake || missing+=(cmake)
    has_compiler || missing+=(compiler)
    has_libclang || missing+=(libclang)
    if [[ "$purpose" == test ]]; then
        has_python || missing+=(python)
        has_browser || missing+=(browser)
    fi
}

# Packages of the given kind: apt, dnf or brew.
packages() {
    local kind="$1" part
    for part in "${missing[@]}"; do
        case "$kind/$part" in
        */cmake) echo cmake ;;
        apt/compiler) echo g++ ;;
        dnf/compiler) echo gcc-c++ ;;
        apt/libclang) echo libclang-dev ;;
        dnf/libclang) echo clang-devel ;;
        brew/libclang) echo llvm ;;
        apt/python) echo python3 python3-venv ;;
        dnf/python | brew/python) echo python3 ;;
        apt/browser) echo chromium chromium-driver ;;
        dnf/browser) echo chromium chromedriver ;;
        brew/browser) echo chromium chromedriver ;;
        esac
    done
}

# Runs the command as root, or says that it must be run.
as_root() {
    if [[ "$(id -u)" == 0 ]]; then
        "$@"
    elif has sudo && sudo -v; then
        sudo "$@"
    else
        give_up "run as root: $*"
    fi
}

give_up() {
    echo "install-deps: missing: ${missing[*]}" >&2
    echo "install-deps: $1" >&2
    exit 1
}

install() {
    local list
    if has apt-get; then
        mapfile -t list < <(packages apt | tr ' ' '\n')
        as_root apt-get update
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${list[@]}"
    elif has dnf; then
        mapfile -t list < <(packages dnf)
        as_root dnf install --assumeyes "${list[@]}"
    elif [[ "$(uname -s)" == Darwin ]]; then
        # The bash of macOS has no mapfile.
        [[ " ${missing[*]} " == *" compiler "* ]] && give_up "run: xcode-select --install"
        has brew || give_up "install Homebrew and run: brew install $(packages brew | xargs)"
        # shellcheck disable=SC2046
        brew install $(packages brew)
    else
        give_up "install with your package manager: $(packages apt | xargs) (Debian's names)"
    fi
}

case "$purpose" in
build | test) ;;
*)
    echo "usage: scripts/install-deps.sh build|test" >&2
    exit 2
    ;;
esac

if ! has cargo; then
    echo "install-deps: missing: cargo; install Rust 1.95 or newer (rustup), then open a new shell" >&2
    exit 1
fi
find_missing
[[ ${#missing[@]} == 0 ]] && exit 0
[[ "${TANDEM_DEPS:-install}" == print ]] && give_up "not installed, because TANDEM_DEPS=print"
echo "install-deps: installing ${missing[*]}" >&2
install

missing=()
find_missing
[[ ${#missing[@]} == 0 ]] || give_up "they were installed and are still not found"
