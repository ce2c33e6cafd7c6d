"""numpy on the mount: tofile and fromfile, save and load, np.memmap for reading and for writing in place."""

import os

import numpy

from clientlib import STRICT, Observer, run


def block(seed, count=200_000):
    """A block of `count` float32 that follows from `seed`."""
    return numpy.random.default_rng(seed).standard_normal(count, dtype=numpy.float32)


def tofile_fromfile(root):
    """A block per file, odd sizes, replaced twice."""
    for index in range(10):
        path = os.path.join(root, f"{index}.bin")
        for version in range(3):
            data = block(index * 10 + version, 100_000 + index * 7 + version)
            data.tofile(f"{path}.tmp")
            os.replace(f"{path}.tmp", path)
            assert numpy.array_equal(numpy.fromfile(path, dtype=numpy.float32), data)
    part = numpy.fromfile(os.path.join(root, "3.bin"), dtype=numpy.float32, count=1000, offset=4000)
    assert numpy.array_equal(part, block(32, 100_023)[1000:2000])


def save_and_load_mapped(root):
    """np.save to the final name; np.load with mmap_mode reads the same array."""
    path = os.path.join(root, "a.npy")
    data = block(1).reshape(100, -1)
    numpy.save(path, data)
    assert numpy.array_equal(numpy.load(path), data)
    mapped = numpy.load(path, mmap_mode="r")
    assert numpy.array_equal(mapped, data)
    own = numpy.load(path, mmap_mode="c")
    own[0, 0] = 42
    assert numpy.load(path)[0, 0] == data[0, 0]


def memmap_read(root):
    """np.memmap mode r keeps its version when the name is replaced."""
    path = os.path.join(root, "r.bin")
    block(1).tofile(path)
    mapped = numpy.memmap(path, dtype=numpy.float32, mode="r")
    block(2).tofile(f"{path}.tmp")
    os.replace(f"{path}.tmp", path)
    assert numpy.array_equal(mapped, block(1))
    assert numpy.array_equal(numpy.memmap(path, dtype=numpy.float32, mode="r"), block(2))
    os.unlink(path)
    assert numpy.array_equal(mapped, block(1))


def memmap_write(root):
    """np.memmap modes w+ and r+: a shared mapping filled after np closed its descriptor, then renamed."""
    observer = Observer()
    tmp, final = os.path.join(root, "w.tmp"), os.path.join(root, "w.bin")
    mapped = numpy.memmap(tmp, dtype=numpy.float32, mode="w+", shape=(200_000,))
    mapped[:] = block(5)
    mapped.flush()
    del mapped
    os.rename(tmp, final)
    observer.whole(final, block(5).tobytes())
    # r+ on a sealed object makes a new version; a mapping of the old one keeps its bytes
    before = numpy.memmap(final, dtype=numpy.float32, mode="r")
    changed = numpy.memmap(final, dtype=numpy.float32, mode="r+")
    changed[100:200] = -1
    changed.flush()
    del changed
    wanted = block(5)
    wanted[100:200] = -1
    observer.whole(final, wanted.tobytes())
    if STRICT:
        assert numpy.array_equal(before, block(5)), "a mapping of the version before changed"
    observer.close()


if __name__ == "__main__":
    run([tofile_fromfile, save_and_load_mapped, memmap_read, memmap_write])
