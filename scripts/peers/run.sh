#!/usr/bin/env bash
# Installs real servers and clients into environments of their own, once, and tests tandem beside them: run.sh TANDEM [NAME...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tandem=$1
shift
cache=${TANDEM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem}/peers

# An environment for the files of requirements that follow its name; those ending in -alone.txt without their dependencies.
environment() {
    local name=$1
    shift
    local hash
    hash=$(cat "$@" | cksum | cut -d' ' -f1)
    local dir=$cache/$name-$hash
    if [ ! -e "$dir/ready" ]; then
        echo "installing $name into $dir" >&2
        rm -rf "$dir"
        python3 -m venv "$dir"
        for file in "$@"; do
            case $file in
                *-alone.txt) "$dir/bin/pip" install --quiet --no-deps --requirement "$file" >&2 ;;
                *) "$dir/bin/pip" install --quiet --requirement "$file" >&2 ;;
            esac
        done
        touch "$dir/ready"
    fi
    echo "$dir/bin"
}

peers=$(environment peers "$here/peers.txt")
dynamo=$(environment dynamo "$here/dynamo.txt" "$here/dynamo-alone.txt")
router=$(environment router "$here/router.txt")
exec python3 "$here/test.py" "$tandem" "$peers/python" "$dynamo/python" "$router/vllm-router" "$@"
