#!/usr/bin/env python3
"""What two hosts of a cluster reach on one machine, as ratios to the engine's own transfers in the same run.

usage: tests/bench/cluster.py [--tidefs FILE] [--transport tcp] [--size BYTES] [--objects N] [--rounds N]

Starts `tidefs cluster dev` with two hosts, publishes objects on the first and reads them on the second, which has none of
them: each read is one look-up, one open with its fetch, and the bytes. Needs root, etcd and a release build.
"""

import argparse
import concurrent.futures
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time

MIB = 1 << 20
# Rounds that are not counted.
WARM_UP = 3


def median_us(times):
    return statistics.median(times) * 1e6


def publish(directory, name, data):
    temporary = f"{directory}/.{name}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, data)
    os.close(descriptor)
    start = time.perf_counter()
    os.rename(temporary, f"{directory}/{name}")
    return time.perf_counter() - start


def read(path, buffer):
    start = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY)
    count = os.readv(descriptor, [buffer])
    os.close(descriptor)
    assert count == len(buffer), (path, count)
    return time.perf_counter() - start


def absent(path):
    start = time.perf_counter()
    found = os.access(path, os.F_OK)
    elapsed = time.perf_counter() - start
    assert not found, path
    return elapsed


def engine(arguments):
    """Bytes in a second of the engine's reads of this size, by depth."""
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        size = f"{arguments.size // MIB}MiB" if arguments.size >= MIB else f"{arguments.size // 1024}KiB"
        command = [arguments.tidefs, "bench", "transfer", "--transports", arguments.transport, "--sizes", size]
        command += ["--depth", "1,16", "--rounds", "3", "--json", result.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.load(open(result.name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tidefs", default="target/release/tidefs")
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--size", type=int, default=4 * MIB)
    parser.add_argument("--objects", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    folder = tempfile.mkdtemp(prefix="tidefs-bench-cluster-")
    # Less than two rounds need, so that later ones get memory that earlier ones gave back: a virtual machine gets memory
    # from its host when it is first touched, which takes far longer than any copy.
    capacity = arguments.size * arguments.objects * 5 // 4 + 64 * MIB
    command = [arguments.tidefs, "cluster", "dev", "--hosts", "2", "--dir", folder, "--json"]
    command += ["--capacity", str(capacity), "-o", f"cluster.transports={arguments.transport}"]
    cluster = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        depth, text = 0, ""
        for line in cluster.stdout:
            text += line
            depth += line.count("{") - line.count("}")
            if depth == 0 and text.strip():
                break
        first, second = (host["mount"] for host in json.loads(text)["hosts"])
        measure(arguments, f"{first}/kv", f"{second}/kv")
    finally:
        cluster.send_signal(signal.SIGINT)
        cluster.wait()
    for row in engine(arguments)["rows"]:
        if row["case"] == "read":
            rate = row["gigabytes_per_second"]["median"] * 1e9 / MIB
            print(f"the engine alone, {row['depth']} at once: {rate:.0f} MiB/s, p50 {row['p50_us']:.0f} us")


def measure(arguments, here, there):
    os.mkdir(here)
    while not os.path.isdir(there):
        time.sleep(0.01)
    data = os.urandom(arguments.size)
    buffers = [bytearray(arguments.size) for _ in range(32)]
    renames, cold, warm, throughput, parallel = [], [], [], [], []
    for round_number in range(arguments.rounds + WARM_UP):
        if round_number == WARM_UP:
            for kept in (renames, cold, warm, throughput, parallel):
                kept.clear()
        names = [f"r{round_number}-{number}" for number in range(arguments.objects)]
        renames += [publish(here, name, data) for name in names]
        half = len(names) // 2
        start = time.perf_counter()
        cold += [read(f"{there}/{name}", buffers[0]) for name in names[:half]]
        throughput.append(half * arguments.size / (time.perf_counter() - start))
        warm += [read(f"{there}/{name}", buffers[0]) for name in names[:half]]
        assert bytes(buffers[0]) == data
        start = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda pair: read(f"{there}/{pair[1]}", buffers[pair[0] % 32]), enumerate(names[half:])))
        parallel.append((len(names) - half) * arguments.size / (time.perf_counter() - start))
    first = [absent(f"{there}/absent-{number}") for number in range(2000)]
    again = [absent(f"{there}/absent-{number}") for number in range(2000)]
    delays = []
    for number in range(200):
        assert not os.access(f"{there}/seen-{number}", os.F_OK)
        publish(here, f"seen-{number}", data[:65536])
        start = time.perf_counter()
        while not os.access(f"{there}/seen-{number}", os.F_OK):
            pass
        delays.append(time.perf_counter() - start)
    size = f"{arguments.size / MIB:g} MiB"
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, transport {arguments.transport}")
    print(f"cold open + read + close of {size}: median {median_us(cold):.0f} us, {statistics.median(throughput) / MIB:.0f} MiB/s")
    print(f"the same by 32 readers: {statistics.median(parallel) / MIB:.0f} MiB/s")
    print(f"the same again, from memory of the host: median {median_us(warm):.0f} us")
    print(f"rename that two hosts hear of: median {median_us(renames):.0f} us")
    print(f"absence: asked for {median_us(first):.1f} us, remembered {median_us(again):.2f} us")
    print(f"seen on the other host after a rename: p99 {sorted(delays)[len(delays) * 99 // 100] * 1e6:.0f} us")


if __name__ == "__main__":
    main()
