"""Shape (a): written under a temporary name, published by rename. One function per client, in its call order."""

import errno
import fcntl
import mmap
import multiprocessing
import os
import stat
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from clientlib import (
    PAGE,
    STRICT,
    BareMapping,
    Observer,
    aligned,
    aligned_room,
    content,
    expect,
    pwrite_once,
    run,
    same,
    utimensat_touch,
    write_once,
)

MIB = 1 << 20


def safetensors_writer(root):
    """Mode 0600, ftruncate to the final size, write, rename, and only then close; readers map privately."""
    observer = Observer()
    final = os.path.join(root, "model.safetensors")
    for version in range(3):
        data = content("safetensors", version, 3 * MIB + 80)
        tmp = os.path.join(root, f".tmp{version:06}")
        fd = os.open(tmp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, len(data))
        write_once(fd, data)
        os.rename(tmp, final)
        observer.whole(final, data)
        os.close(fd)
        observer.whole(final, data)
        assert stat.S_IMODE(os.stat(final).st_mode) == 0o600
        first = os.open(final, os.O_RDONLY)
        shown = BareMapping(first, os.fstat(first).st_size, mmap.PROT_READ, mmap.MAP_PRIVATE)
        second = os.open(final, os.O_RDONLY)
        own = BareMapping(second, len(data), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE)
        os.posix_fadvise(second, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        os.close(first)
        os.close(second)
        same("private mapping", shown.read(), data)
        own.write(0, b"x" * 100)
        same("the other mapping", shown.read(), data)
        observer.whole(final, data)
        own.close()
        shown.close()
    observer.close()


def vllm_fs_tier(root):
    """16 + 16 threads; O_DIRECT, one write of the whole block, close, rename; EEXIST is success."""
    base = os.path.join(root, "model_0123456789ab")
    os.makedirs(base, exist_ok=True)
    probe = os.open(os.path.join(base, ".probe"), os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
    write_once(probe, aligned(bytes(PAGE)))
    os.close(probe)
    os.unlink(os.path.join(base, ".probe"))
    with open(os.path.join(base, "config.json"), "w") as config:
        config.write("{}")
    size = MIB + 4 * PAGE
    blocks = {f"{index:064x}": content("vllm", index, size) for index in range(48)}

    def path_of(name):
        return os.path.join(f"{base}_r0", name[-3:], f"{name[-5:-3]}_grp0", f"{name}.bin")

    def store(name):
        final = path_of(name)
        if os.access(final, os.F_OK):
            return
        os.makedirs(os.path.dirname(final), exist_ok=True)
        tmp = f"{final}_{threading.get_ident():x}.tmp"
        fd = os.open(tmp, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC | os.O_DIRECT, 0o644)
        try:
            write_once(fd, aligned(blocks[name]))
        except BaseException:
            os.unlink(tmp)
            raise
        finally:
            os.close(fd)
        try:
            os.rename(tmp, final)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            os.unlink(tmp)

    def load(name):
        fd = os.open(path_of(name), os.O_RDONLY | os.O_DIRECT)
        try:
            room = aligned_room(size)
            view = memoryview(room)
            assert os.readv(fd, [view[: size // PAGE // 2 * PAGE], view[size // PAGE // 2 * PAGE :]]) == size
            same(name, room[:], blocks[name])
        finally:
            os.close(fd)

    assert not any(os.access(path_of(name), os.F_OK) for name in blocks)
    with ThreadPoolExecutor(16) as pool:
        # Each block twice: two engines that share the root and meet at the same key.
        for done in [pool.submit(store, name) for name in list(blocks) * 2]:
            done.result()
    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(load, name) for name in blocks]:
            done.result()
    assert all(os.access(path_of(name), os.F_OK) for name in blocks)
    left = [name for _, _, names in os.walk(root) for name in names if name.endswith(".tmp")]
    assert not left, left


def llmd_cpu(root):
    """Rename while the descriptor is still open; the evictor walks by atime while readers hold files."""
    observer = Observer()
    paths = []
    for index in range(12):
        final = os.path.join(root, f"{index % 3:03}", f"{index:02}_g0", f"{index:032x}.bin")
        os.makedirs(os.path.dirname(final), exist_ok=True)
        data = content("llmd", index, 2 * MIB + 12345)
        tmp = f"{final}_{os.getpid():x}.tmp"
        file = open(tmp, "wb")
        file.write(data)
        file.flush()
        os.rename(tmp, final)
        observer.whole(final, data)
        file.close()
        observer.whole(final, data)
        paths.append((final, data))
    final, data = paths[0]
    before = os.stat(final)
    time.sleep(0.02)
    utimensat_touch(final)
    after = os.stat(final)
    assert after.st_mtime_ns == before.st_mtime_ns, "mtime was to be omitted"
    assert after.st_atime_ns > before.st_atime_ns, "atime was to move"
    # tail read: seek to the end, then to the tail
    with open(final, "rb") as file:
        assert file.seek(0, os.SEEK_END) == len(data)
        file.seek(-4096, os.SEEK_END)
        same("tail", file.read(), data[-4096:])
    free = os.statvfs(root).f_bavail
    walked = sorted(
        (os.stat(os.path.join(where, name)).st_atime_ns, os.path.join(where, name))
        for where, _, names in os.walk(root)
        for name in names
    )
    assert len(walked) == len(paths)
    assert walked[-1][1] == final, "the touched file is the youngest"
    held = [(open(path, "rb"), data) for path, data in paths]
    for _, path in walked:
        os.unlink(path)
    for file, data in held:
        same("after unlink", file.read(), data)
        file.close()
    deadline = time.monotonic() + 5
    while os.statvfs(root).f_bavail < free + len(paths) * 2 * MIB // PAGE and time.monotonic() < deadline:
        time.sleep(0.01)
    if STRICT:
        assert os.statvfs(root).f_bavail >= free + len(paths) * 2 * MIB // PAGE, "unlinked bytes are not free"
    observer.close()


def llmd_gds(root):
    """O_RDWR, one pwrite per block behind a hole at the front; the hole reads as zeros."""
    final = os.path.join(root, "partial.bin")
    tmp = f"{final}_1.tmp"
    head = 5 * 64 * 1024
    fd = os.open(tmp, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    data = content("gds", 1, 11 * 64 * 1024)
    for offset in range(0, len(data), 64 * 1024):
        pwrite_once(fd, aligned(data[offset : offset + 64 * 1024]), head + offset)
    os.close(fd)
    os.rename(tmp, final)
    expect(final, bytes(head) + data)
    expect(final, bytes(head) + data, os.O_DIRECT)


def sglang_file(root):
    """Flat directory; numpy's tofile (dup, lseek, one write), close, os.replace; one unbuffered readinto."""
    pages = {f"{index:064x}_model_0_1.bin": content("sglang", index, 40 * 1024 + index) for index in range(200)}
    for name, data in pages.items():
        tmp = os.path.join(root, f".{uuid.uuid4().hex}.tmp")
        with open(tmp, "wb", buffering=0) as file:
            twin = os.dup(file.fileno())
            os.lseek(twin, 0, os.SEEK_SET)
            write_once(twin, data)
            os.close(twin)
        os.replace(tmp, os.path.join(root, name))
    assert sorted(os.listdir(root)) == sorted(pages)
    for name, data in pages.items():
        assert os.path.isfile(os.path.join(root, name))
        room = bytearray(len(data))
        with open(os.path.join(root, name), "rb", buffering=0) as file:
            assert file.readinto(room) == len(data)
        same(name, bytes(room), data)
    # replace in place: the new version at once, whole
    name = next(iter(pages))
    newer = content("sglang", "newer", 50 * 1024)
    tmp = os.path.join(root, ".again.tmp")
    with open(tmp, "wb") as file:
        file.write(newer)
    os.replace(tmp, os.path.join(root, name))
    expect(os.path.join(root, name), newer)
    # LRU by mtime, then clear()
    ages = [(os.stat(os.path.join(root, name)).st_mtime_ns, name) for name in os.listdir(root)]
    assert max(ages)[1] == name
    for _, name in sorted(ages):
        os.unlink(os.path.join(root, name))
    assert os.listdir(root) == []


def ucm_posix(root):
    """4096 directories; every layer reopens the tmp file in its own thread; rename while another still writes."""
    for index in range(4096):
        folder = os.path.join(root, f"{index:03x}")
        os.mkdir(folder)
        os.chmod(folder, 0o777)
    layers, shard = 16, 128 * 1024
    observer = Observer()
    for direct in (0, os.O_DIRECT):
        for block in range(6):
            name = f"{block:03x}{direct:013x}{0:016x}"
            final = os.path.join(root, name[:3], name)
            tmp = f"{final}.tmp"
            data = content("ucm", f"{block} {direct}", layers * shard)
            late_opened, renamed = threading.Event(), threading.Event()
            left = threading.Semaphore(0)

            def dump(layer):
                fd = os.open(tmp, os.O_CREAT | os.O_WRONLY | direct, 0o644)
                piece = aligned(data[layer * shard : (layer + 1) * shard])
                if layer == layers - 1:
                    # the straggler: its descriptor is open, its bytes come after the rename
                    late_opened.set()
                    assert renamed.wait(30)
                    pwrite_once(fd, piece, layer * shard)
                    os.close(fd)
                    return
                pwrite_once(fd, piece, layer * shard)
                os.close(fd)
                left.release()

            threads = [threading.Thread(target=dump, args=(layer,)) for layer in range(layers)]
            for thread in threads:
                thread.start()
            for _ in range(layers - 1):
                assert left.acquire(timeout=30)
            assert late_opened.wait(30)
            os.rename(tmp, final)
            renamed.set()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            observer.whole(final, data)
            expect(final, data, direct)
    hits = [f"{block:03x}{0:013x}{0:016x}" for block in range(6)]
    misses = [f"{block:03x}{7:013x}{0:016x}" for block in range(6, 200)]

    def lookup(name):
        return os.access(os.path.join(root, name[:3], name), os.F_OK | os.R_OK | os.W_OK)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lookup, hits + misses))
    assert answers == [True] * len(hits) + [False] * len(misses)
    before = os.stat(os.path.join(root, hits[0][:3], hits[0])).st_mtime_ns
    time.sleep(0.02)
    os.utime(os.path.join(root, hits[0][:3], hits[0]), None)
    assert os.stat(os.path.join(root, hits[0][:3], hits[0])).st_mtime_ns > before
    expect(os.path.join(root, hits[0][:3], hits[0]), content("ucm", "0 0", layers * shard))
    # GC: readdir + stat of all directories, oldest 10 % of mtime removed
    files = sorted(
        (entry.stat().st_mtime_ns, entry.path)
        for folder in os.scandir(root)
        for entry in os.scandir(folder.path)
    )
    assert len(files) == 12, files
    for _, path in files[: len(files) // 10 + 1]:
        os.remove(path)
    observer.close()


def _consume(lock, data_path, wanted, told):
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            expect(data_path, wanted)
        told.put("whole")
    except BaseException as error:
        told.put(repr(error))


def vllm_hidden_states(root):
    """The producer makes the lock file, locks it and holds it open; the consumer opens it and blocks in flock(LOCK_SH)
    until the data file is there; then it removes both."""
    lock, final = os.path.join(root, "req.safetensors.lock"), os.path.join(root, "req.safetensors")
    wanted = content("hidden", 0, MIB)
    fd = os.open(lock, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    consumer = context.Process(target=_consume, args=(lock, final, wanted, told))
    consumer.start()
    time.sleep(0.5)
    early = None if told.empty() else told.get()
    assert early is None, f"the consumer did not wait at the lock: {early}"
    tmp = os.path.join(root, ".tmp000001")
    with open(tmp, "xb") as file:
        file.write(wanted)
    os.rename(tmp, final)
    os.close(fd)
    answer = told.get(timeout=30)
    consumer.join(30)
    assert answer == "whole", answer
    os.remove(lock)
    os.remove(final)


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    run(
        [
            safetensors_writer,
            vllm_fs_tier,
            llmd_cpu,
            llmd_gds,
            sglang_file,
            ucm_posix,
            vllm_hidden_states,
        ]
    )
