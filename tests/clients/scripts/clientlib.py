"""What the client scripts share: known bytes, aligned buffers, an observer in another process, a runner.

Every block's bytes follow from its key and version, so each byte that comes back can be checked. The scripts
use nothing but the standard library and the call orders of the clients they stand for. `TIDEFS_STRICT=1` adds
the checks that only tidefs promises (an ordinary file system would fail them).
"""

import ctypes
import errno
import hashlib
import mmap
import os
import subprocess
import sys
import time
import traceback

STRICT = os.environ.get("TIDEFS_STRICT") == "1"
PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def content(key, version, length):
    """`length` bytes that belong to `key` in `version` and to nothing else; no page equals another page."""
    seed = hashlib.shake_128(f"{key} {version}".encode()).digest(min(length, 16 * PAGE))
    if length <= len(seed):
        return seed
    whole = bytearray(seed * (length // len(seed) + 1))[:length]
    for index in range(0, length - 8, PAGE):
        whole[index : index + 8] = index.to_bytes(8, "little")
    return bytes(whole)


def aligned(data):
    """A page-aligned copy of `data`, as O_DIRECT wants it."""
    buffer = mmap.mmap(-1, max(len(data), 1))
    buffer[: len(data)] = data
    return buffer


def aligned_room(length):
    """Page-aligned empty memory of `length` bytes."""
    return mmap.mmap(-1, length)


def write_once(fd, data):
    """One write(2) of the whole block: clients do not retry a short one."""
    written = os.write(fd, data)
    assert written == len(data), f"short write: {written} of {len(data)}"


def pwrite_once(fd, data, offset):
    """One pwrite(2) of the whole block."""
    written = os.pwrite(fd, data, offset)
    assert written == len(data), f"short write at {offset}: {written} of {len(data)}"


def read_whole(path, flags=0):
    """The file in one readv(2), as block readers do; `flags` may hold O_DIRECT."""
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        length = os.fstat(fd).st_size
        room = aligned_room(max(length, PAGE))
        got = os.readv(fd, [memoryview(room)[: max(length, 1)]])
        assert got == length, f"{path}: short read, {got} of {length}"
        return room[:length]
    finally:
        os.close(fd)


def expect(path, wanted, flags=0):
    """The file at `path` holds exactly `wanted`."""
    got = read_whole(path, flags)
    same(path, got, wanted)


def same(what, got, wanted):
    """Two byte strings are equal; says where they part."""
    if got == wanted:
        return
    where = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
    raise AssertionError(
        f"{what}: {len(got)} bytes, expected {len(wanted)}; first difference at {where}: "
        f"got {got[where : where + 16].hex()}, expected {wanted[where : where + 16].hex()}"
    )


def fallocate(fd, mode, offset, length):
    """fallocate(2) itself: the library's posix_fallocate would hide EOPNOTSUPP."""
    result = libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length))
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class BareMapping:
    """mmap(2) that keeps no descriptor. The standard `mmap` duplicates it, which would postpone the last close."""

    def __init__(self, fd, length, protection, flags):
        self.length = length
        self.address = libc.mmap(None, length, protection, flags, fd, 0)
        if self.address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def read(self):
        """All bytes of the mapping."""
        return ctypes.string_at(self.address, self.length)

    def write(self, offset, data):
        """Stores `data` at `offset`."""
        assert offset + len(data) <= self.length
        ctypes.memmove(self.address + offset, data, len(data))

    def close(self):
        """munmap(2)."""
        libc.munmap(self.address, self.length)
        self.address = None


def utimensat_touch(path):
    """utimensat(path, {UTIME_NOW, UTIME_OMIT}): a new access time, the modification time kept."""
    now, omit = (1 << 30) - 1, (1 << 30) - 2
    times = (ctypes.c_int64 * 4)(0, now, 0, omit)
    if libc.utimensat(-100, os.fsencode(path), ctypes.byref(times), 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


OBSERVER = r"""
import os, sys, hashlib
for line in sys.stdin:
    what, path = line.rstrip("\n").split(" ", 1)
    try:
        if what == "stat":
            print("size", os.stat(path).st_size, flush=True)
        elif what == "read":
            with open(path, "rb") as file:
                data = file.read()
            print("data", len(data), hashlib.sha256(data).hexdigest(), flush=True)
        elif what == "list":
            print("names", *sorted(os.listdir(path)), flush=True)
    except OSError as error:
        print("errno", error.errno, flush=True)
"""


class Observer:
    """Another process that looks at paths: what it sees is what another engine would see."""

    def __init__(self):
        self.child = subprocess.Popen(
            [sys.executable, "-c", OBSERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, what, path):
        self.child.stdin.write(f"{what} {path}\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().split()

    def absent(self, path):
        """stat and open both say ENOENT."""
        for what in ("stat", "read"):
            answer = self.ask(what, path)
            assert answer == ["errno", str(errno.ENOENT)], f"{what} {path}: expected ENOENT, got {answer}"

    def whole(self, path, wanted):
        """The path holds `wanted`, in size and in every byte."""
        answer = self.ask("stat", path)
        assert answer == ["size", str(len(wanted))], f"stat {path}: expected {len(wanted)} bytes, got {answer}"
        answer = self.ask("read", path)
        digest = hashlib.sha256(wanted).hexdigest()
        assert answer == ["data", str(len(wanted)), digest], f"{path}: other bytes than were written: {answer}"

    def close(self):
        self.child.stdin.close()
        self.child.wait()


def run(steps):
    """Runs every step in a directory of its own below argv[1]; the exit status says whether all passed."""
    root, wanted = sys.argv[1], sys.argv[2:]
    failed = 0
    for step in steps:
        if wanted and step.__name__ not in wanted:
            continue
        place = os.path.join(root, step.__name__)
        os.makedirs(place, exist_ok=True)
        began = time.monotonic()
        try:
            step(place)
            print(f"ok {step.__name__} ({time.monotonic() - began:.2f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {step.__name__}", flush=True)
            traceback.print_exc(file=sys.stdout)
    sys.exit(1 if failed else 0)
