#!/bin/bash
# Runs the TCP engine of the reference system and ours in turn, on loopback, and prints the ratios.
#
# The reference is the wheel `mooncake-transfer-engine-non-cuda` with its own bench, installed by name into a virtual
# environment of this script's. Both engines move the same blocks again and again between two processes of this machine:
# 1 MiB blocks with 16 under way for throughput, one 64 KiB block at a time for latency, which is the mean time of a block
# at both. Rounds alternate; medians are compared.
#
# usage: tests/bench/reference_pair.sh [ROUNDS] [SECONDS]     (default 5 rounds of 3 seconds)
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
rounds=${1:-5}
seconds=${2:-3}
work=$root/target/reference-pair
bench=$work/venv/bin/transfer_engine_bench
tidefs=$root/target/release/tidefs
target_pid=

cleanup() { if [[ -n $target_pid ]]; then kill -- "-$target_pid" 2>/dev/null || true; wait "$target_pid" 2>/dev/null || true; fi; }
trap cleanup EXIT

prepare() {
    mkdir -p "$work"
    if [[ ! -x $bench ]]; then
        echo "reference_pair: installing mooncake-transfer-engine-non-cuda into $work/venv" >&2
        python3 -m venv "$work/venv"
        "$work/venv/bin/pip" install --quiet --disable-pip-version-check mooncake-transfer-engine-non-cuda
    fi
    (cd "$root" && cargo build --release --quiet --package tidefs-cli)
}

start_target() {
    # In a process group of its own: what the wheel installs is a wrapper that starts the program.
    setsid "$bench" --mode=target --metadata_server=P2PHANDSHAKE --protocol=tcp --local_server_name=127.0.0.1:12345 \
        --buffer_size=268435456 >"$work/target.log" 2>&1 &
    target_pid=$!
    for _ in $(seq 100); do
        segment=$(sed -n 's/.*P2P handshake, listening on \([0-9.:]*\).*/\1/p' "$work/target.log" | tail -n 1)
        if [[ -n $segment ]] && grep -q 'DRAM is used' "$work/target.log"; then return; fi
        sleep 0.1
    done
    echo "reference_pair: the reference's target did not start; its log is $work/target.log" >&2
    exit 1
}

# reference OPERATION BLOCK BATCH: prints "GB/s microseconds-per-batch".
reference() {
    "$bench" --mode=initiator --metadata_server=P2PHANDSHAKE --protocol=tcp --segment_id="$segment" \
        --local_server_name=127.0.0.1:12346 --buffer_size=268435456 --threads=1 --duration="$seconds" \
        --operation="$1" --block_size="$2" --batch_size="$3" >"$work/initiator.log" 2>&1
    sed -n 's/.*duration \([0-9.]*\), batch count \([0-9]*\), throughput.*/\1 \2/p' "$work/initiator.log" |
        awk -v block="$2" -v batch="$3" '{ printf "%.4f %.1f\n", $2 * batch * block / $1 / 1e9, $1 * 1e6 / $2 }'
}

# ours OPERATION SIZE DEPTH BLOCK SPAN: the same two numbers from our bench.
ours() {
    "$tidefs" bench transfer --transports tcp --sizes "$2" --depth "$3" --span "$5" --rounds 3 --quick --json "$work/ours.json" >/dev/null
    jq -r --arg case "$1" '.rows[] | select(.case == $case) | .gigabytes_per_second.median' "$work/ours.json" |
        awk -v bytes=$(("$4" * "$3")) '{ printf "%.4f %.1f\n", $1, bytes / $1 / 1e3 }'
}

median() { sort -g | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }

prepare
start_target
: >"$work/throughput" && : >"$work/latency"
for round in $(seq "$rounds"); do
    for operation in read write; do
        read -r reference_rate _ < <(reference $operation 1048576 16)
        read -r our_rate _ < <(ours $operation 1MiB 16 1048576 16MiB)
        read -r _ reference_time < <(reference $operation 65536 1)
        read -r _ our_time < <(ours $operation 64KiB 1 65536 64KiB)
        awk -v a="$our_rate" -v b="$reference_rate" 'BEGIN { print a / b }' >>"$work/throughput"
        awk -v a="$our_time" -v b="$reference_time" 'BEGIN { print a / b }' >>"$work/latency"
        echo "round $round $operation: 1 MiB x16: ours $our_rate GB/s, reference $reference_rate GB/s;" \
            "64 KiB: ours $our_time us, reference $reference_time us"
    done
done
echo "median ratio of throughput at 1 MiB: $(median <"$work/throughput") (target: at least 2)"
echo "median ratio of latency at 64 KiB: $(median <"$work/latency") (target: at most 0.5)"
