"""Shape (a) as LMCache has it, published by rename. One function per backend, in its call order."""

import mmap
import os
import struct
import time
import uuid

from clientlib import (
    PAGE,
    STRICT,
    BareMapping,
    Observer,
    aligned,
    content,
    expect,
    pwrite_once,
    run,
    same,
    write_once,
)

MIB = 1 << 20


def lmcache_fs(root):
    """`fs://`: a 28-byte header and the data, stem.tmp, replace; reads the header, then the rest."""
    for index in range(20):
        stem = os.path.join(root, f"model-SEP-x@1@0@{index:016x}@bf16")
        data = content("lmcache", index, MIB)
        header = struct.pack("<7I", index, len(data), 0, 0, 0, 0, 0)
        with open(f"{stem}.tmp", "wb", buffering=0) as file:
            file.write(header)
            file.write(data)
        os.replace(f"{stem}.tmp", f"{stem}.data")
        with open(f"{stem}.data", "rb", buffering=0) as file:
            room = bytearray(28)
            assert file.readinto(room) == 28
            same("header", bytes(room), header)
            room = bytearray(len(data))
            assert file.readinto(room) == len(data)
            same("data", bytes(room), data)
    names = [name for name in os.listdir(root) if name.endswith(".data")]
    assert len(names) == 20, names


def lmcache_l2(root):
    """The temporary file lives in another directory; names of 237 bytes and more."""
    tmp_dir, store = os.path.join(root, "tmp"), os.path.join(root, "store")
    os.makedirs(tmp_dir)
    os.makedirs(store)
    for index in range(20):
        name = f"model@0x0@0@{index:064x}@" + "s" * (237 - 82) + ".data"
        final, tmp = os.path.join(store, name), os.path.join(tmp_dir, name)
        data = content("l2", index, 300 * 1000)
        try:
            os.stat(final)
            raise AssertionError("must not exist yet")
        except FileNotFoundError:
            pass
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        write_once(fd, data)
        os.close(fd)
        os.rename(tmp, final)
        assert os.stat(final).st_size == len(data)
        expect(final, data)
    assert os.listdir(tmp_dir) == []
    for name in os.listdir(store):
        os.unlink(os.path.join(store, name))
    longest = os.path.join(store, "n" * 255)
    with open(longest, "wb") as file:
        file.write(b"longest")
    expect(longest, b"longest")


def lmcache_gds(root):
    """Header, close, reopen, ftruncate, map shared, close, fill the mapping, rename, then the metadata file."""
    observer = Observer()
    for index in range(8):
        folder = os.path.join(root, f"{index:02x}", "ab")
        os.makedirs(folder, exist_ok=True)
        final = os.path.join(folder, f"model%40{index}.kvcache.safetensors")
        tmp = f"{final}.tmp{index:08x}"
        header, data = content("header", index, PAGE), content("gdsmap", index, MIB + PAGE * index)
        with open(tmp, "wb") as file:
            file.write(header)
        fd = os.open(tmp, os.O_RDWR)
        os.ftruncate(fd, PAGE + len(data))
        view = BareMapping(fd, PAGE + len(data), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED)
        os.close(fd)
        time.sleep(0.01)
        view.write(PAGE, data)
        if index % 2:
            # some releases drop the mapping only with the tensor that wraps it, after the rename
            os.rename(tmp, final)
            observer.whole(final, header + data)
            view.close()
        else:
            view.close()
            os.rename(tmp, final)
        observer.whole(final, header + data)
        with open(f"{final}.metadata.tmp", "wb") as file:
            file.write(header)
        os.rename(f"{final}.metadata.tmp", f"{final}.metadata")
        if STRICT:
            # It is final when the daemon has heard of its close, a moment after that.
            deadline = time.monotonic() + 20
            while "user.tidefs.checksum" not in os.listxattr(final) and time.monotonic() < deadline:
                time.sleep(0.005)
            assert os.getxattr(final, "user.tidefs.checksum"), "a sealed file has a checksum"
    seen = 0
    for first in os.scandir(root):
        for second in os.scandir(first.path):
            for entry in os.scandir(second.path):
                if entry.name.endswith(".metadata"):
                    try:
                        fd = os.open(entry.path, os.O_RDONLY | os.O_NOATIME)
                    except PermissionError:
                        fd = os.open(entry.path, os.O_RDONLY)
                    assert len(os.read(fd, PAGE)) == PAGE
                    os.close(fd)
                    seen += 1
    assert seen == 8
    path = os.path.join(root, "03", "ab", "model%403.kvcache.safetensors")
    fd = os.open(path, os.O_RDONLY)
    populate = getattr(mmap, "MAP_POPULATE", 0x8000)
    view = BareMapping(fd, os.fstat(fd).st_size, mmap.PROT_READ, mmap.MAP_PRIVATE | populate)
    os.close(fd)
    same("populated", view.read(), content("header", 3, PAGE) + content("gdsmap", 3, MIB + PAGE * 3))
    view.close()
    # cuFile variant: pwrite behind the header on a second open, O_DIRECT
    tmp, final = os.path.join(root, "cufile.tmp1"), os.path.join(root, "cufile")
    with open(tmp, "wb") as file:
        file.write(content("header", 99, PAGE))
    fd = os.open(tmp, os.O_RDWR | os.O_DIRECT)
    pwrite_once(fd, aligned(content("cufile", 1, MIB)), PAGE)
    os.close(fd)
    os.rename(tmp, final)
    observer.whole(final, content("header", 99, PAGE) + content("cufile", 1, MIB))
    observer.close()


def lmcache_nixl_dynamic(root):
    """4 KiB descriptors with O_DIRECT into tmp.uuid, close, rename; the size is used for accounting."""
    for index in range(10):
        folder = os.path.join(root, f"{index:02x}", "00")
        os.makedirs(folder, exist_ok=True)
        final = os.path.join(folder, f"{index}.bin")
        tmp = f"{final}.tmp.{uuid.uuid4().hex}"
        data = content("nixl", index, 40 * PAGE)
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o644)
        for offset in reversed(range(0, len(data), PAGE)):
            pwrite_once(fd, aligned(data[offset : offset + PAGE]), offset)
        os.close(fd)
        os.rename(tmp, final)
        assert os.stat(final).st_size == len(data)
        expect(final, data, os.O_DIRECT)
    leftover = os.path.join(root, "00", "00", "dead.bin.tmp.0")
    open(leftover, "wb").close()
    for where, _, names in os.walk(root):
        for name in names:
            if ".tmp." in name:
                os.unlink(os.path.join(where, name))
    assert sum(len(names) for _, _, names in os.walk(root)) == 10


if __name__ == "__main__":
    run(
        [
            lmcache_fs,
            lmcache_l2,
            lmcache_gds,
            lmcache_nixl_dynamic,
        ]
    )
