"""Shape (b): written straight to the final name. Nothing but the file system protects a reader from half a file."""

import hashlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from clientlib import (
    PAGE,
    STRICT,
    Observer,
    aligned,
    aligned_room,
    content,
    expect,
    pwrite_once,
    read_whole,
    run,
    same,
)

MIB = 1 << 20

POLLER = r"""
# Opens the name again and again; reports every length it met and whether the bytes were whole.
import hashlib, os, sys, time
path, length, digest = sys.argv[1], int(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
looks = torn = 0
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read()
    except FileNotFoundError:
        looks += 1
        if looks == 4:
            print("looked", flush=True)
        continue
    whole = len(data) == length and hashlib.sha256(data).hexdigest() == digest
    torn += size != length or not whole
    if whole:
        break
print(looks, torn, flush=True)
"""


def sglang_nixl(root):
    """256 bucket directories; O_RDWR|O_CREAT|O_DIRECT without O_TRUNC, writes in any order, close at the end."""
    for bucket in range(256):
        os.mkdir(os.path.join(root, f"{bucket:02x}"))
    observer = Observer()
    for index in range(8):
        for half in "kv":
            final = os.path.join(root, f"{index:02x}", f"{index:064x}_model_0_1_{half}")
            data = content("sgnixl", f"{index}{half}", 5 * MIB // 4)
            fd = os.open(final, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
            pieces = list(range(0, len(data), 64 * 1024))
            for number, offset in enumerate(pieces[1::2] + pieces[0::2]):
                pwrite_once(fd, aligned(data[offset : offset + 64 * 1024]), offset)
                if STRICT and number % 7 == 0:
                    observer.absent(final)
            if STRICT:
                answer = observer.ask("list", os.path.dirname(final))
                assert os.path.basename(final) not in answer, "a hidden file is not listed"
            os.close(fd)
            observer.whole(final, data)
            expect(final, data, os.O_DIRECT)
    # the same key again, in place, same size: a new version for new readers
    final = os.path.join(root, "00", f"{0:064x}_model_0_1_k")
    older, newer = content("sgnixl", "0k", 5 * MIB // 4), content("sgnixl", "0k again", 5 * MIB // 4)
    reader = os.open(final, os.O_RDONLY)
    fd = os.open(final, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    pwrite_once(fd, aligned(newer), 0)
    os.close(fd)
    observer.whole(final, newer)
    if STRICT:
        same("a reader from before keeps its bytes", os.pread(reader, len(older), 0), older)
    os.close(reader)
    # cleaner: statvfs, scandir everything, unlink the oldest in batches of 50 from 8 threads
    files = sorted(
        (entry.stat().st_mtime_ns, entry.path)
        for bucket in os.scandir(root)
        for entry in os.scandir(bucket.path)
    )
    assert len(files) == 16
    before = os.statvfs(root)
    assert before.f_bsize == PAGE or not STRICT
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(os.unlink, [path for _, path in files]))
    observer.absent(files[0][1])
    observer.close()


def polling_reader_never_meets_half_a_file(root):
    """A reader that polls the final name while a slow writer fills it: absent, absent, ..., whole."""
    for round_number in range(5):
        final = os.path.join(root, f"polled{round_number}")
        data = content("polled", round_number, 2 * MIB)
        poller = subprocess.Popen(
            [sys.executable, "-c", POLLER, final, str(len(data)), hashlib.sha256(data).hexdigest()],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert poller.stdout.readline() == "ready\n"
        fd = os.open(final, os.O_RDWR | os.O_CREAT, 0o644)
        for offset in range(0, len(data), 128 * 1024):
            pwrite_once(fd, data[offset : offset + 128 * 1024], offset)
            time.sleep(0.005)
            if STRICT and offset == MIB:
                # In the middle of the file: it goes on when the poller has looked.
                assert poller.stdout.readline() == "looked\n"
        os.close(fd)
        looks, torn = map(int, poller.stdout.readline().split())
        assert poller.wait(30) == 0
        if STRICT:
            assert torn == 0, f"{torn} torn looks"
            assert looks > 3, "the poller hardly looked"


def lmcache_local_disk(root):
    """O_CREAT|O_WRONLY|O_DIRECT without O_TRUNC, one write, close; after a restart the same names again."""
    observer = Observer()
    for life in range(2):
        for index in range(12):
            final = os.path.join(root, f"model@1@0@{index:016x}@bf16.pt")
            data = content("local", f"{life} {index}", 2 * MIB)
            if index % 2:
                fd = os.open(final, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
                os.write(fd, aligned(data))
                os.close(fd)
            else:
                with open(final, "wb") as file:
                    file.write(data)
            observer.whole(final, data)
            room = aligned_room(len(data))
            fd = os.open(final, os.O_RDONLY | os.O_DIRECT)
            with os.fdopen(fd, "rb", buffering=0) as file:
                assert file.readinto(room) == len(data)
            same(final, room[:], data)
    for name in os.listdir(root):
        os.remove(os.path.join(root, name))
    assert os.listdir(root) == []
    observer.close()


def tensorrt_llm(root):
    """O_CREAT|O_WRONLY 0664, one write, close; block ids are rewritten in place and never removed."""
    observer = Observer()
    for version in range(4):
        for block in range(6):
            final = os.path.join(root, f"block_{block}_pool_0.bin")
            data = content("trt", f"{version} {block}", 5 * MIB // 4)
            reader = os.open(final, os.O_RDONLY) if version else None
            fd = os.open(final, os.O_CREAT | os.O_WRONLY, 0o664)
            os.write(fd, data)
            os.close(fd)
            observer.whole(final, data)
            if reader is not None:
                if STRICT:
                    older = content("trt", f"{version - 1} {block}", 5 * MIB // 4)
                    same("the reader of the version before", os.pread(reader, len(older), 0), older)
                os.close(reader)
    # a shorter rewrite without O_TRUNC keeps the old tail, as POSIX says
    final = os.path.join(root, "block_0_pool_0.bin")
    before = read_whole(final)
    fd = os.open(final, os.O_CREAT | os.O_WRONLY, 0o664)
    os.write(fd, b"short")
    os.close(fd)
    observer.whole(final, b"short" + before[5:])
    observer.close()


def two_writers_of_one_name(root):
    """Two handles on one hidden file: visible only when the last is released; O_EXCL says EEXIST meanwhile."""
    observer = Observer()
    final = os.path.join(root, "shared")
    data = content("two", 0, MIB)
    first = os.open(final, os.O_RDWR | os.O_CREAT, 0o644)
    second = os.open(final, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.open(final, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        raise AssertionError("O_EXCL on a name that is being written")
    except FileExistsError:
        pass
    pwrite_once(first, data[: MIB // 2], 0)
    pwrite_once(second, data[MIB // 2 :], MIB // 2)
    os.close(first)
    if STRICT:
        observer.absent(final)
    os.close(second)
    observer.whole(final, data)
    observer.close()


def killed_writer_leaves_nothing(root):
    """SIGKILL between write and close: the name never appears."""
    if not STRICT:
        return
    observer = Observer()
    for index in range(5):
        final = os.path.join(root, f"killed{index}")
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import os, sys, time\n"
                "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)\n"
                "os.write(fd, b'x' * 3000000)\n"
                "print('written', flush=True)\n"
                "time.sleep(60)\n",
                final,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout.readline() == "written\n"
        observer.absent(final)
        child.kill()
        child.wait()
        time.sleep(0.2)
        observer.absent(final)
    observer.close()


if __name__ == "__main__":
    run(
        [
            sglang_nixl,
            polling_reader_never_meets_half_a_file,
            lmcache_local_disk,
            tensorrt_llm,
            two_writers_of_one_name,
            killed_writer_leaves_nothing,
        ]
    )
