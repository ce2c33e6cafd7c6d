#!/bin/bash
# Builds the wheel with the maturin beside an interpreter: build.sh PYTHON FOLDER, where the wheel goes. Further
# arguments go to maturin: --release, for a wheel that is given to others.
set -euo pipefail

(($# >= 2)) || {
    printf 'usage: %s PYTHON FOLDER [OPTION...]\n' "$0" >&2
    exit 2
}
python=$1 folder=$2
shift 2
mkdir -p -- "$folder"
folder=$(cd -- "$folder" && pwd -P)
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
exec "${python%/*}/maturin" build --locked --compatibility linux --interpreter "$python" --out "$folder" "$@"
