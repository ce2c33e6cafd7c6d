#!/bin/bash
# What only other kernels can show, in the guest of guest.sh: the engine over libfabric on `verbs;ofi_rxm`, which asks for the
# same registration modes as EFA, and engines on a network that delays, loses, doubles and reorders packets (netem).
# Where the guest cannot be had, says why, and succeeds.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

status=0
tests/rdma/guest.sh --check || status=$?
((status == 77)) && exit 0
((status == 0)) || exit "$status"

# Path of a test program of the engine.
program() {
    cargo test --locked -p tidefs-engine --test "$1" --no-run --message-format=json 2>/dev/null |
        jq -r 'select(.executable != null and .target.kind == ["test"]) | .executable' | tail -n 1
}

fabric=$(program fabric)
processes=$(program processes)
[[ -x $fabric && -x $processes ]] || { echo "the tests of the engine do not build" >&2; exit 1; }

# FI_UNIVERSE_SIZE: the default asks for a completion queue longer than rxe has.
# FI_MR_CACHE_MAX_COUNT: see docs/ARCHITECTURE.md; without it withdrawn memory stays within reach.
inside="
set -e
export FI_UNIVERSE_SIZE=8 FI_MR_CACHE_MAX_COUNT=0 RUST_BACKTRACE=0
TIDEFS_TEST_FABRIC='verbs;ofi_rxm@10.8.0.1' '$fabric' --test-threads=1 --nocapture real death
'$processes' --test-threads=1 --nocapture packets_that_are_late | tee /dev/shm/netem
if grep -q '^skipped' /dev/shm/netem; then exit 1; fi
"
GUEST_SECONDS=${GUEST_SECONDS:-400} tests/rdma/guest.sh bash -c "$inside"
