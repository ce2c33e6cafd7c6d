#!/usr/bin/env python3
"""Puts, gets and existence checks of the reference system's store and of tidefs in turn, on one machine, as ratios.

usage: tests/bench/reference_store.py [--sizes BYTES,..] [--rounds N] [--by files] [--capacity MIB] [--json FILE]

The reference is the wheel `mooncake-transfer-engine-non-cuda`, installed by name into a virtual environment of this
script's: its master, one process that gives memory to the store, and this one, which gives none and moves objects by TCP
from and into a buffer that is registered. tidefs is two daemons of `tidefs cluster dev --without-etcd` with
`cluster.transports=tcp`, used by their Python package or, with `--by files`, by paths: a put writes on the second host (as a
temporary file that is renamed), a get reads on the second host what the first one wrote, which it does not have.
Existence is of 500 names at once: theirs by `batch_is_exist`, ours by `Cache.prefix`, on names of the other host. Each
round starts one system alone, since threads of an idle one may spin, and moves everything twice before what is counted.
Rounds alternate; medians are compared. Needs root and a release build; the Python package it builds.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "reference-store"
PYTHON = WORK / "venv" / "bin" / "python"
KIB, MIB = 1 << 10, 1 << 20
# Bytes of one round, and names of one existence check.
ROUND_BYTES, NAMES = 128 * MIB, 500
# The reference has room for all, and is emptied after each round: it evicts what was just written, too.
ROOM = 6144 * MIB
SYSTEMS = ("reference", "tidefs")


def prepare():
    """Goes on in the virtual environment, made when it is missing, with the Python package of this checkout, optimised."""
    if pathlib.Path(sys.prefix) == WORK / "venv":
        return
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not PYTHON.exists():
        print(f"installing mooncake-transfer-engine-non-cuda into {WORK}/venv", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", WORK / "venv"], check=True)
    subprocess.run([*pip, "mooncake-transfer-engine-non-cuda", "numpy", "maturin"], check=True)
    print("building the Python package", file=sys.stderr)
    build = [ROOT / "mount-tools/client-python/build.sh", PYTHON, WORK / "wheels", "--release"]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    wheels = list((WORK / "wheels").glob("tidefs-*.whl"))
    subprocess.run([*pip, "--force-reinstall", "--no-deps", *wheels], check=True)
    os.execv(PYTHON, [PYTHON, *sys.argv])


def free_port():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


def store(master, segment):
    from mooncake.store import MooncakeDistributedStore

    made = MooncakeDistributedStore()
    own = f"127.0.0.1:{free_port()}"
    status = made.setup(own, "P2PHANDSHAKE", segment, 64 * MIB, "tcp", "", master)
    if status != 0:
        sys.exit(f"the reference's store does not start: {status}")
    return made


class Reference:
    """The master, a process with memory for the store, and this one as their client."""

    def __init__(self, buffer):
        self.log = open(WORK / "reference.log", "w")
        port = free_port()
        master = [WORK / "venv/bin/mooncake_master", f"--rpc_port={port}", f"--metrics_port={free_port()}"]
        self.master = subprocess.Popen(master, stdout=self.log, stderr=self.log, start_new_session=True)
        time.sleep(2)
        address = f"127.0.0.1:{port}"
        node = [sys.executable, __file__, "--serve", address]
        self.node = subprocess.Popen(node, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        for line in self.node.stdout:
            if line.strip() == "serves":
                break
        else:
            sys.exit(f"the reference's node does not start; its log is {WORK}/reference.log")
        self.store, self.buffer = store(address, 0), buffer
        if self.store.register_buffer(buffer.ctypes.data, buffer.nbytes) != 0:
            sys.exit("the reference does not register the buffer")

    def put(self, name, size):
        status = self.store.put_from(name, self.buffer.ctypes.data, size)
        assert status == 0, (name, status)

    def get(self, name, size):
        count = self.store.get_into(name, self.buffer.ctypes.data, size)
        assert count == size, (name, count)

    def publish(self, name, size):
        self.put(name, size)

    def end_round(self):
        self.store.remove_all()

    def exist(self, names):
        return sum(found == 1 for found in self.store.batch_is_exist(names))

    def close(self):
        self.store.close()
        self.node.stdin.close()
        self.node.wait(timeout=30)
        # What the wheel installs is a wrapper that starts the program: both are in this group, and keep nothing.
        os.killpg(self.master.pid, signal.SIGKILL)
        self.master.wait(timeout=30)


class Tidefs:
    """Two hosts of a cluster; this process works on the second."""

    def __init__(self, buffer, program, by_files, capacity):
        import tidefs

        self.buffer, self.folder = buffer, tempfile.TemporaryDirectory()
        command = [program, "cluster", "dev", "--json", "--without-etcd", "--hosts", "2", "--dir", self.folder.name]
        command += ["--capacity", f"{capacity}MiB", "-o", "cluster.transports=tcp"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("}"):
                break
        self.first, self.second = (f"{host['mount']}/kv" for host in json.loads(said)["hosts"])
        os.mkdir(self.first)
        while not os.path.isdir(self.second):
            time.sleep(0.01)
        self.cache, self.by_files = tidefs.Cache(self.second), by_files

    def write(self, directory, name, size):
        descriptor = os.open(f"{directory}/.{name}.tmp", os.O_WRONLY | os.O_CREAT, 0o644)
        assert os.write(descriptor, self.buffer[:size]) == size
        os.close(descriptor)
        os.rename(f"{directory}/.{name}.tmp", f"{directory}/{name}")

    def put(self, name, size):
        if self.by_files:
            self.write(self.second, name, size)
        else:
            self.cache.put(name, self.buffer[:size])

    def publish(self, name, size):
        self.write(self.first, name, size)

    def get(self, name, size):
        if not self.by_files:
            assert self.cache.get_into(name, self.buffer[:size]) == size, name
            return
        descriptor = os.open(f"{self.second}/{name}", os.O_RDONLY)
        count = os.readv(descriptor, [self.buffer[:size]])
        os.close(descriptor)
        assert count == size, (name, count)

    def end_round(self):
        pass

    def exist(self, names):
        return self.cache.prefix(names)

    def close(self):
        self.cache.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        self.folder.cleanup()


def timed(call, names, size):
    start = time.perf_counter()
    for name in names:
        call(name, size)
    return size * len(names) / (time.perf_counter() - start)


def measure(system, size, label):
    """Bytes a second of puts and of gets."""
    count = max(4, min(256, ROUND_BYTES // size))
    written, read = ([f"{kind}-{label}-{number}" for number in range(count)] for kind in "wr")
    put = timed(system.put, written, size)
    for name in read:
        system.publish(name, size)
    time.sleep(0.5)
    get = timed(system.get, read, size)
    return put, get


def existence(system, label):
    """Seconds until 500 names are known to be there, at the first look and when asked again."""
    names = [f"e-{label}-{number}" for number in range(NAMES)]
    for name in names:
        system.publish(name, 4096)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        assert system.exist(names) == NAMES
        times.append(time.perf_counter() - start)
    return times[0], statistics.median(times[1:])


def run(name, sizes, program, by_files, capacity):
    """One round of one system: case, size, and bytes or batches a second."""
    import numpy

    buffer = numpy.random.default_rng(1).integers(0, 256, max(sizes), dtype=numpy.uint8)
    system = Reference(buffer) if name == "reference" else Tidefs(buffer, program, by_files, capacity)
    figures = []
    # Memory is new to both at first: a virtual machine gets it from its host when it is touched.
    for label in ("new", "warm", "counted"):
        figures.clear()
        for size in sizes:
            put, get = measure(system, size, f"{label}-{size}")
            figures += [("put", size, put), ("get", size, get)]
        first, again = existence(system, label)
        system.end_round()
        figures += [("exist", "first", 1 / first), ("exist", "again", 1 / again)]
    system.close()
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="65536,1048576,4194304,16777216")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tidefs", default=str(ROOT / "target/release/tidefs"))
    parser.add_argument("--by", choices=("library", "files"), default="library", help="how tidefs is used")
    parser.add_argument("--capacity", type=int, default=1024, help="MiB of each host; with 320 and one size it evicts all the time")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--serve", metavar="MASTER", help=argparse.SUPPRESS)
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    if arguments.serve:
        serving = store(arguments.serve, ROOM)
        print("serves", flush=True)
        sys.stdin.read()
        serving.close()
        return
    prepare()
    if arguments.system:
        print(json.dumps(run(arguments.system, sizes, arguments.tidefs, arguments.by == "files", arguments.capacity)))
        return
    found = {}
    for number in range(arguments.rounds):
        for name in SYSTEMS:
            command = [sys.executable, *sys.argv, "--system", name]
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            for case, size, figure in json.loads(ended.stdout.splitlines()[-1]):
                found.setdefault((name, case, size), []).append(figure)
    rows = []
    for (name, case, size), ours in found.items():
        if name != "tidefs":
            continue
        theirs = found["reference", case, size]
        ratios = [mine / other for mine, other in zip(ours, theirs)]
        row = {"case": case, "size": size, "tidefs": statistics.median(ours), "reference": statistics.median(theirs)}
        row |= {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        rows.append(row)
        scale, unit = (MIB, "MiB/s") if case != "exist" else (1, "batches/s")
        figures = f"{row['tidefs'] / scale:10.1f} {row['reference'] / scale:10.1f} {unit:9}"
        print(f"{case:6} {size!s:>9} {figures} {row['ratio']:6.2f} ({row['least']:.2f}..{row['most']:.2f})")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
