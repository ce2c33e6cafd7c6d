#!/usr/bin/env python3
"""Runs the file back-ends of inference engines, as their authors release them, on directories of tidefs (or anything else).

usage: tests/clients/engines.py [--clients NAMES] [--seconds N] [--processes N] [--json FILE] DIR...

Clients, all by default: `vllm` (its file-system tier), `sglang` (HiCacheFile), `lmcache` (its native file connector, with
and without O_DIRECT) and `nixl` (the POSIX plug-in, by libaio, io_uring and POSIX AIO, with and without O_DIRECT). Each of
them stores and loads objects of 40 KiB to 10 MiB under names that a few thousand are drawn from, from several processes at
once, which are spread over the directories: name one of each host to have hosts read what others wrote. Every loaded byte
is compared. Misses are counted and allowed. Exit code 1: a byte was wrong, or a call failed otherwise.

The packages are installed by name into a virtual environment of this script's, with what they import (some 5 GB, for
PyTorch). No GPU is needed. Nothing of the engines beyond these back-ends is run.
"""

import argparse
import hashlib
import importlib.util
import json
import logging
import multiprocessing
import os
import pathlib
import random
import select
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / "target" / "engine-clients"
PYTHON = VENV / "bin" / "python"
# What the clients print: of each miss, for some of them.
LOG = VENV / "log"
# NIXL brings PyTorch. The others would bring far more than their file back-ends import, so they come without.
WHOLE = ["nixl", "numpy", "aiohttp", "orjson", "pyyaml", "pyzmq", "psutil", "pybase64", "msgspec", "transformers", "pillow",
         "ipython", "setproctitle", "uvloop", "fastapi", "prometheus_client", "sortedcontainers", "aiofiles", "numba", "requests"]
BARE = ["vllm", "sglang", "lmcache"]
KIB, MIB = 1 << 10, 1 << 20
SIZES = [40 * KIB, 160 * KIB, MIB, 1280 * KIB, 4 * MIB, 10 * MIB]
NAMES = 3000
# Longest time that one call may take.
HANG = 60


def prepare():
    """Goes on in the virtual environment, which is made when it is missing."""
    if pathlib.Path(sys.prefix) == VENV:
        return
    if not (VENV / "whole").exists():
        print(f"installing {', '.join(['nixl', *BARE])} into {VENV}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *WHOLE], check=True)
        subprocess.run([*pip, "--no-deps", *BARE], check=True)
        (VENV / "whole").touch()
    os.execv(PYTHON, [PYTHON, *sys.argv])


def aligned(size):
    import numpy

    raw = numpy.zeros(size + 4096, numpy.uint8)
    return raw[-raw.ctypes.data % 4096 :][:size]


def body(number, size):
    """The bytes of an object: no two are alike, nor two pages of one."""
    import numpy

    whole = aligned(size)
    whole[:] = numpy.random.Generator(numpy.random.SFC64(number)).integers(0, 255, size, numpy.uint8)
    return whole


class Vllm:
    """The functions that its file-system tier has its threads call."""

    def __init__(self, directory, _variant):
        import torch  # noqa: F401: the native part is linked against it.

        package = pathlib.Path(importlib.util.find_spec("vllm").origin).parent

        def load(name, path):
            spec = importlib.util.spec_from_file_location(name, package / path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            return module

        # Without what `import vllm` brings in.
        sys.modules["vllm"] = type(sys)("vllm")
        self.native = load("vllm.fs_io_C", "fs_io_C.abi3.so")
        self.io = load("vllm_fs_io", "v1/kv_offload/tiering/fs/io.py")
        self.directory = directory
        self.is_direct = self.io.probe_o_direct(directory)

    def path(self, name):
        return f"{self.directory}/{name[:3]}/{name[3:5]}_g0/{name}.bin"

    def store(self, objects):
        for name, data in objects:
            self.io.batch_store_block([self.path(name)], memoryview(data), [0], len(data), self.is_direct)

    def load(self, names, targets):
        there = self.native.batch_lookup([self.path(name) for name in names])
        found = []
        for name, target, is_there in zip(names, targets, there):
            try:
                if is_there:
                    self.io.batch_load_block([self.path(name)], memoryview(target), [0], len(target), self.is_direct)
                found.append(bool(is_there))
            except FileNotFoundError:
                found.append(False)
        return found


class Sglang:
    def __init__(self, directory, _variant):
        from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig

        logging.disable(logging.CRITICAL)
        config = HiCacheStorageConfig(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=True,
            enable_storage_metrics=False, is_page_first_layout=False, model_name="org/model",
        )
        self.cache = HiCacheFile(config, directory)

    def store(self, objects):
        import torch

        for name, data in objects:
            if not self.cache.set(name, torch.from_numpy(data)):
                raise OSError(f"{name} was not stored")

    def load(self, names, targets):
        import torch

        return [self.cache.get(name, torch.from_numpy(target)) is not None for name, target in zip(names, targets)]


class Lmcache:
    VARIANTS = ("buffered", "direct")

    def __init__(self, directory, variant):
        from lmcache.lmcache_fs import LMCacheFSClient

        # Its temporary files are named after the object alone: each process needs a directory for them.
        self.client = LMCacheFSClient(directory, 4, f"tmp-{os.getpid()}", variant == "direct", 0)

    def key(self, name):
        return f"org/model@00000000@0@{name}"

    def wait(self, number):
        while select.select([self.client.event_fd()], [], [], HANG)[0]:
            os.eventfd_read(self.client.event_fd())
            for done in self.client.drain_completions():
                if int(done[0]) == int(number):
                    return done
        raise TimeoutError("no completion")

    def store(self, objects):
        keys = [self.key(name) for name, _ in objects]
        done = self.wait(self.client.submit_batch_set(keys, [memoryview(data) for _, data in objects]))
        if not done[1]:
            raise OSError(str(done[2]))

    def load(self, names, targets):
        keys = [self.key(name) for name in names]
        self.wait(self.client.submit_batch_exists(keys))
        _, _, _, found = self.wait(self.client.submit_batch_get(keys, [memoryview(target) for target in targets]))
        return [bool(is_there) for is_there in found]


class Nixl:
    VARIANTS = ("libaio", "libaio-direct", "io_uring", "io_uring-direct", "posix_aio", "posix_aio-direct")
    QUEUES = {"libaio": "use_aio", "io_uring": "use_uring", "posix_aio": "use_posix_aio"}

    def __init__(self, directory, variant):
        from nixl._api import nixl_agent, nixl_agent_config

        queue, _, direct = variant.partition("-")
        self.agent = nixl_agent(f"agent-{os.getpid()}", nixl_agent_config(backends=[]))
        self.agent.create_backend("POSIX", {name: str(name == self.QUEUES[queue]).lower() for name in self.QUEUES.values()})
        self.directory, self.flags = directory, os.O_DIRECT if direct else 0

    def path(self, name):
        os.makedirs(f"{self.directory}/{name[:2]}", exist_ok=True)
        return f"{self.directory}/{name[:2]}/{name}"

    def move(self, direction, files, buffers):
        memory = self.agent.register_memory([(data.ctypes.data, len(data), 0, "") for data in buffers], "DRAM")
        there = self.agent.register_memory([(0, len(data), file, "") for file, data in zip(files, buffers)], "FILE")
        transfer = self.agent.initialize_xfer(direction, memory.trim(), there.trim(), self.agent.name)
        state, began = self.agent.transfer(transfer), time.monotonic()
        while state != "DONE":
            if state == "ERR" or time.monotonic() - began > HANG:
                raise OSError(f"NIXL says {state}")
            state = self.agent.check_xfer_state(transfer)
        self.agent.release_xfer_handle(transfer)
        self.agent.deregister_memory(memory)
        self.agent.deregister_memory(there)

    def store(self, objects):
        # To the final name at once, so that no other process has written half of it: who finds it leaves it.
        files = []
        for name, data in objects:
            try:
                files.append((os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | self.flags), data))
            except FileExistsError:
                pass
        if files:
            self.move("WRITE", [file for file, _ in files], [data for _, data in files])
        for file, _ in files:
            os.close(file)

    def load(self, names, targets):
        found = []
        for name, target in zip(names, targets):
            try:
                file = os.open(self.path(name), os.O_RDONLY | self.flags)
            except FileNotFoundError:
                found.append(False)
                continue
            self.move("READ", [file], [target])
            os.close(file)
            found.append(True)
        return found


CLIENTS = {"vllm": Vllm, "sglang": Sglang, "lmcache": Lmcache, "nixl": Nixl}


def work(client, variant, directory, seed, seconds, results):
    """One process of a client: what it stored, found, did not find, found wrong, and failed at."""
    counts = {"stored": 0, "hits": 0, "misses": 0, "wrong": 0, "failed": 0, "causes": []}
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        backend = CLIENTS[client](directory, variant)
        rng = random.Random(seed)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            numbers = {int(rng.paretovariate(0.5)) % NAMES for _ in range(rng.choice([1, 4, 16]))}
            drawn = [(number, hashlib.sha256(b"%d" % number).hexdigest(), SIZES[number % len(SIZES)]) for number in numbers]
            try:
                if rng.random() < 0.4:
                    backend.store([(name, body(number, size)) for number, name, size in drawn])
                    counts["stored"] += len(drawn)
                    continue
                targets = [aligned(size) for _, _, size in drawn]
                found = backend.load([name for _, name, _ in drawn], targets)
                for (number, _, size), target, is_there in zip(drawn, targets, found):
                    counts["hits" if is_there else "misses"] += 1
                    counts["wrong"] += bool(is_there and (target != body(number, size)).any())
            except Exception as error:
                counts["failed"] += 1
                counts["causes"] = [*counts["causes"], f"{type(error).__name__}: {error}"][:3]
    finally:
        results.put(counts)


def run(client, variant, arguments):
    results = multiprocessing.Queue()
    directories = [str(pathlib.Path(directory) / f"{client}-{variant}") for directory in arguments.directories]
    os.makedirs(directories[0], exist_ok=True)
    began = time.monotonic()
    # What another host made is seen there a moment later.
    while not all(map(os.path.isdir, directories)) and time.monotonic() < began + HANG:
        time.sleep(0.01)
    of_each = [(client, variant, directories[seed % len(directories)], seed, arguments.seconds, results)
               for seed in range(arguments.processes)]
    processes = [multiprocessing.Process(target=work, args=of_one) for of_one in of_each]
    for process in processes:
        process.start()
    counts = [results.get(timeout=arguments.seconds + 5 * HANG) for _ in processes]
    for process in processes:
        process.join()
    names = [name for name in counts[0] if name != "causes"]
    total = {name: sum(of_one[name] for of_one in counts) for name in names}
    return {"client": client, "variant": variant, **total, "causes": sum((of_one["causes"] for of_one in counts), [])[:3]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", metavar="DIR", help="where they store, one of each host")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="some of vllm,sglang,lmcache,nixl")
    parser.add_argument("--seconds", type=float, default=20, help="time for each variant of a client")
    parser.add_argument("--processes", type=int, default=4, help="processes of each")
    parser.add_argument("--json", metavar="FILE", help="write the results there, too")
    arguments = parser.parse_args()
    unknown = set(arguments.clients.split(",")) - set(CLIENTS)
    if unknown:
        parser.error(f"no client {', '.join(sorted(unknown))}; there are {', '.join(CLIENTS)}")
    prepare()
    LOG.unlink(missing_ok=True)
    print(f"{'client':<24} {'stored':>8} {'hits':>8} {'misses':>8} {'wrong':>6} {'failed':>7}", flush=True)
    rows = []
    for client in arguments.clients.split(","):
        for variant in getattr(CLIENTS[client], "VARIANTS", ("files",)):
            row = run(client, variant, arguments)
            rows.append(row)
            name = f"{client} {variant}"
            counts = f"{row['stored']:>8} {row['hits']:>8} {row['misses']:>8} {row['wrong']:>6} {row['failed']:>7}"
            print(f"{name:<24} {counts}", flush=True)
            for cause in row["causes"]:
                print(f"    {cause}", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=2) + "\n")
    sys.exit(1 if any(row["wrong"] or row["failed"] or not row["hits"] for row in rows) else 0)


if __name__ == "__main__":
    main()
