"""What the Python package does with what is stored, and with an object that owns its cache, beyond the table of cases.

tidefs_stores.py DIRECTORY, which is a directory of a mount or of another filesystem.
"""

import gc
import os
import sys
import weakref

import tidefs

import cases
from cases import refused

MIB = 1 << 20


class Engine:
    """Owns a cache, and registers its segments by methods of its own: each leads to the other."""

    def __init__(self, let_go):
        self.pinned, self.let_go = [], let_go
        self.cache = tidefs.Cache(sys.argv[1])
        self.cache.register_with(self.pin, self.unpin)

    def pin(self, address, _length):
        self.pinned.append(address)
        return self, address

    def unpin(self, pin):
        owner, address = pin
        # It is whole still.
        assert owner is self
        self.pinned.remove(address)
        self.let_go.append(address)


def an_engine_that_owns_its_cache_is_collected_with_it(cache):
    let_go = []
    engine = Engine(let_go)
    engine.cache.put("engine", b"e" * MIB)
    engine.cache.get("engine").release()
    pinned, gone = list(engine.pinned), weakref.ref(engine)
    assert bool(pinned) == cache.is_fast
    del engine
    gc.collect()
    assert gone() is None and sorted(let_go) == sorted(pinned), (let_go, pinned)
    # One that is viewed is to be unregistered yet.
    engine = Engine(let_go)
    view, gone = engine.cache.get("engine"), weakref.ref(engine)
    is_registered = view.is_registered
    assert is_registered == cache.is_fast
    del engine
    gc.collect()
    assert (gone() is not None) == is_registered and bytes(view) == b"e" * MIB
    del view
    gc.collect()
    assert gone() is None and len(let_go) == len(pinned) + is_registered


def what_is_not_stored_is_said_of_each(cache):
    cache.put("each/file", b"f")
    objects = [("each/a", b"1"), ("each/file/b", b"2"), ("each/c", b"3")]
    first, second, third = cache.put_each(objects)
    assert first is None and third is None and isinstance(second, OSError), (first, second, third)
    assert "each/file/b" in str(second)
    assert bytes(cache.get("each/a")) == b"1" and bytes(cache.get("each/c")) == b"3"
    assert "each/file/b" in refused(OSError, lambda: cache.put_many(objects))
    assert "key/b" in refused((TypeError, BufferError), lambda: cache.put_many([("key/a", b""), ("key/b", 3)]))
    assert "'..'" in refused(ValueError, lambda: cache.put_each([("..", b"1")])).replace('"', "'")


def what_was_made_ready_is_not_written_again(cache):
    with cache.create("ready", 100_000) as writer:
        writer.write(b"a" * 100_000)
        writer.ready(0, 50)
        assert "made ready" in refused(ValueError, lambda: writer.write(b"b", 49))
        assert writer.write(b"b", 50) == 1
    assert bytes(cache.get("ready"))[:52] == b"a" * 50 + b"ba"


def an_object_is_made_by_the_umask_of_its_moment(cache):
    for mask in (0o077, 0o027, 0o022):
        before = os.umask(mask)
        try:
            cache.put_many([("masked/large", b"m" * 100_000), ("masked/small", b"m"), ("masked/empty", b"")])
        finally:
            os.umask(before)
        for name in ("large", "small", "empty"):
            mode = os.stat(os.path.join(sys.argv[1], "masked", name)).st_mode & 0o777
            assert mode == 0o666 & ~mask, (name, oct(mode), oct(mask))


cases.run(
    [
        an_engine_that_owns_its_cache_is_collected_with_it,
        what_is_not_stored_is_said_of_each,
        what_was_made_ready_is_not_written_again,
        an_object_is_made_by_the_umask_of_its_moment,
    ]
)
