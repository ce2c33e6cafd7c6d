#!/bin/bash
# What only other kernels can show, in the guest of guest.sh: the engine over libfabric on `verbs;ofi_rxm`, which asks for the
# same registration modes as EFA; engines on a network that delays, loses, doubles and reorders packets (netem); and the mount on
# the kernel that the distribution comes with, which may be older than what is used of a new one (passthrough, Linux 6.9).
# Where the guest cannot be had, says why, and succeeds.
#
#   tests/guest/test.sh [FILTER...]   with filters: the tests of the mount alone whose names contain one of them
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

status=0
tests/guest/guest.sh --check || status=$?
((status == 77)) && exit 0
((status == 0)) || exit "$status"

# Path of a test program. Of the workspace: a package alone may be built with other features.
program() {
    cargo test --locked --workspace --test "$1" --no-run --message-format=json 2>/dev/null |
        jq -r 'select(.executable != null and .target.kind == ["test"]) | .executable' | tail -n 1
}

built() {
    [[ -x $1 ]] && return
    echo "the tests do not build" >&2
    exit 1
}

# Not many, and no more bytes than these kernels put into two requests: each takes seconds in the guest, and sizes above that
# most of its time. The same tests have them outside.
mount_filters=(read_paths::passthrough write_paths::passthrough xattrs::passthrough)
(($#)) && mount_filters=("$@")
fuse=$(program fuse)
built "$fuse"
on_the_mount="TIDEFS_TEST_LARGEST=${TIDEFS_TEST_LARGEST:-$((2 << 20))} CARGO_MANIFEST_DIR='$PWD' RUST_BACKTRACE=0 '$fuse' --test-threads=2 ${mount_filters[*]}"
if (($#)); then
    GUEST_SECONDS=${GUEST_SECONDS:-3600} tests/guest/guest.sh bash -c "$on_the_mount"
    exit
fi

fabric=$(program fabric)
processes=$(program processes)
built "$fabric"
built "$processes"

# FI_UNIVERSE_SIZE: the default asks for a completion queue longer than rxe has.
# FI_MR_CACHE_MAX_COUNT: see docs/ARCHITECTURE.md; without it withdrawn memory stays within reach.
inside="
set -e
export FI_UNIVERSE_SIZE=8 FI_MR_CACHE_MAX_COUNT=0 RUST_BACKTRACE=0
TIDEFS_TEST_FABRIC='verbs;ofi_rxm@10.8.0.1' '$fabric' --test-threads=1 --nocapture real death
'$processes' --test-threads=1 --nocapture packets_that_are_late | tee /dev/shm/netem
if grep -q '^skipped' /dev/shm/netem; then exit 1; fi
$on_the_mount
"
GUEST_SECONDS=${GUEST_SECONDS:-600} tests/guest/guest.sh bash -c "$inside"
