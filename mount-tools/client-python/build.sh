#!/bin/bash
# Builds the wheel with the maturin beside an interpreter: build.sh PYTHON FOLDER, where the wheel goes. Further
# arguments go to maturin: --release, for a wheel that is given to others.
set -euo pipefail

(($# >= 2)) || {
    printf 'usage: %s PYTHON FOLDER [OPTION...]\n' "$0" >&2
    exit 2
}
python=$1 folder=$2
mkdir -p -- "$folder"
folder=$(cd -- "$folder" && pwd -P)
# Both are looked for from where this is called. Links stay: the interpreter of a virtual environment is one.
[[ $python == */* ]] || python=$(type -P -- "$python") || {
    printf '%s: no %s in PATH\n' "$0" "$1" >&2
    exit 2
}
python=$(cd -- "$(dirname -- "$python")" && pwd)/${python##*/}
shift 2
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
exec "${python%/*}/maturin" build --locked --compatibility linux --interpreter "$python" --out "$folder" "$@"
