"""Shape (c): one preallocated file per process, blocks rewritten in place, usually unlinked while open."""

import fcntl
import os
import random
import sys
import tempfile
import threading
import time

from clientlib import (
    PAGE,
    STRICT,
    aligned,
    aligned_room,
    content,
    fallocate,
    pwrite_once,
    run,
    same,
)

MIB = 1 << 20
GIB = 1 << 30


def rewrite_slots(fd, slot, count, rounds, seed, vectors=1):
    """Random rewrites of whole slots, each read back whole; slots never written read as zeros."""
    chooser = random.Random(seed)
    held = {}
    for number in range(rounds):
        index = chooser.randrange(count)
        data = content("slot", f"{seed} {number}", slot)
        buffer = aligned(data)
        view = memoryview(buffer)
        part = slot // vectors
        pieces = [view[start : start + part] for start in range(0, slot, part)]
        assert os.pwritev(fd, pieces, index * slot) == slot, "short pwritev"
        held[index] = data
        look = chooser.randrange(count)
        room = aligned_room(slot)
        view = memoryview(room)
        pieces = [view[start : start + part] for start in range(0, slot, part)]
        assert os.preadv(fd, pieces, look * slot) == slot, "short preadv"
        same(f"slot {look}", room[:], held.get(look, bytes(slot)))
    for index, data in held.items():
        room = aligned_room(slot)
        assert os.preadv(fd, [room], index * slot) == slot
        same(f"slot {index}", room[:], data)


def kvbm_disk(root):
    """mkostemp 0600, fcntl(F_SETFL, O_DIRECT), fallocate(0), unlink, then hours of random rewrites."""
    fd, path = tempfile.mkstemp(prefix="dynamo-kvbm-disk-cache-", dir=root)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    size = 64 * MIB
    fallocate(fd, 0, 0, size)
    assert os.fstat(fd).st_size == size
    os.unlink(path)
    assert os.listdir(root) == []
    rewrite_slots(fd, MIB, size // MIB, 150, 1)
    os.close(fd)


def kvbm_disk_opened_direct(root):
    """The same with O_DIRECT at open and ftruncate instead of fallocate."""
    path = os.path.join(root, "dynamo-kvbm-disk-cache-abcdef")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    os.ftruncate(fd, 48 * MIB)
    os.unlink(path)
    rewrite_slots(fd, 512 * 1024, 96, 150, 2)
    os.close(fd)


def vllm_simple_disk(root):
    """unlink old; O_EXCL|O_NOFOLLOW|O_DIRECT 0600; ftruncate above scratch_min; pwritev of 61 pieces per slot."""
    path = os.path.join(root, "rank0")
    for life in range(2):
        try:
            os.unlink(path)
        except FileNotFoundError:
            assert life == 0
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_DIRECT, 0o600)
        size = GIB + 256 * MIB
        os.ftruncate(fd, size)
        slot = 64 * 4 * PAGE
        rewrite_slots(fd, slot, size // slot, 80, 3 + life, vectors=64)
        assert os.stat(path).st_size == size
        os.close(fd)
    os.unlink(path)


def hf3fs_mock(root):
    """O_RDWR|O_CREAT from up to 16 descriptors, ftruncate to GBs, pwrite at page offsets, fsync in flush()."""
    path = os.path.join(root, "hicache.0.bin")
    size = 2 * GIB
    fds = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for _ in range(16)]
    os.ftruncate(fds[0], size)
    failures = []
    page = 256 * 1024

    def work(number):
        try:
            for turn in range(8):
                index = number * 100 + turn
                data = content("hf3fs", index, page)
                pwrite_once(fds[number], data, index * page)
                other = fds[(number + 5) % 16]
                same(f"page {index}", os.pread(other, page, index * page), data)
            os.fsync(fds[number])
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for fd in fds[1:]:
        os.close(fd)
    assert os.pread(fds[0], PAGE, size - PAGE) == bytes(PAGE)
    os.close(fds[0])
    os.unlink(path)


def lmcache_nixl_static_pool(root):
    """A pool of small files held open and rewritten in place, as static slots."""
    pool = []
    for index in range(16):
        path = os.path.join(root, f"obj_{index}_{index * 7919:08x}.bin")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
        pool.append((path, fd))
    for turn in range(4):
        for index, (_, fd) in enumerate(pool):
            data = content("pool", f"{turn} {index}", 256 * 1024)
            pwrite_once(fd, aligned(data), 0)
            room = aligned_room(len(data))
            assert os.preadv(fd, [room], 0) == len(data)
            same(f"obj {index}", room[:], data)
    for path, fd in pool:
        os.close(fd)
        os.unlink(path)


def scratch_bytes_come_back(root):
    """Closing an unlinked slot file gives its bytes back to the namespace or to the disk under it."""
    if not STRICT:
        return
    before = os.statvfs(root).f_bavail
    path = os.path.join(root, "slots")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    for index in range(32):
        pwrite_once(fd, bytes([index]) * MIB, index * MIB)
    os.close(fd)
    deadline = time.monotonic() + 10
    while os.statvfs(root).f_bavail < before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.statvfs(root).f_bavail >= before, "the bytes of a closed, unlinked file are still counted"


if __name__ == "__main__":
    run(
        [
            kvbm_disk,
            kvbm_disk_opened_direct,
            vllm_simple_disk,
            hf3fs_mock,
            lmcache_nixl_static_pool,
            scratch_bytes_come_back,
        ]
    )
