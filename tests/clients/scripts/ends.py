"""How what a process holds of the cache ends: in it, and beside its forked children."""

import gc
import json
import os
import pathlib
import signal
import sys
import threading
import time
import traceback

import tidefs

MIB = 1 << 20


def a_forked_child_gives_nothing_of_its_parent_back(cache):
    old, new = b"o" * 100_000, b"n" * 100_000
    ended = []
    cache.register_with(lambda address, length: os.getpid(), ended.append)
    cache.put("inherited", old)
    # So many that dropping them asks the daemon.
    views = cache.lookup_many(["inherited"] * 1100)
    writer = cache.create("begun", MIB)
    child = os.fork()
    if child == 0:
        try:
            del views
            writer.abort()
            cache.flush()
            with cache.get("inherited") as view:
                assert bytes(view) == old and not view.is_mapped
            assert cache.prefix(["inherited", "absent"]) == 1
            cache.put("of the child", old)
            cache.close()
            gc.collect()
            assert not ended, "a registration of the parent"
            with tidefs.Cache(sys.argv[1]) as own, own.get("of the child") as view:
                assert bytes(view) == old and view.is_mapped == own.is_fast
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    cache.put("inherited", new)
    for index in range(30):
        cache.put(f"other{index}", bytes([index]) * MIB)
        cache.put(f"like it{index}", new)
    assert all(bytes(view) == old for view in views[::97])
    writer.write(b"w" * MIB)
    writer.seal()
    assert bytes(cache.get("begun")) == b"w" * MIB


def a_forked_child_lets_go_of_a_writer_that_another_thread_fills(cache):
    data = b"f" * (16 * MIB)
    writer, is_over = cache.create("filled", len(data)), threading.Event()

    def fill():
        while not is_over.is_set():
            writer.write(data)

    filler = threading.Thread(target=fill)
    filler.start()
    try:
        for _ in range(50):
            child = os.fork()
            if child == 0:
                # Ends it where it hangs.
                signal.alarm(20)
                writer.abort()
                os._exit(0 if writer.closed else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        is_over.set()
        filler.join()
    writer.write(data)
    writer.seal()
    assert bytes(cache.get("filled")) == data


def held():
    """Memory of objects that are gone and still in use, as the daemon tells it."""
    directory = pathlib.Path(sys.argv[1]).resolve()
    for above in [directory, *directory.parents]:
        status = above / ".tidefs" / "status"
        if status.exists():
            return json.loads(status.read_text(encoding="utf-8"))["memory"]["held"]
    return 0


def what_a_parent_held_is_given_back_when_it_closes_though_its_child_lives(_):
    before = held()
    own = tidefs.Cache(sys.argv[1])
    # Small enough that it waits to be given back along with others.
    own.put("held", b"h" * 100_000)
    view = own.get("held")
    os.unlink(os.path.join(sys.argv[1], "held"))
    is_over, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(is_over, 1)
        os._exit(0)
    try:
        view.release()
        own.close()
        deadline = time.monotonic() + 20
        while held() > before:
            assert time.monotonic() < deadline, "its child holds it"
            time.sleep(0.01)
    finally:
        os.write(tell, b"o")
        assert os.waitpid(child, 0)[1] == 0


def an_exception_on_its_way_is_not_lost_in_what_ends_a_registration(_):
    ended = []

    def end(number):
        ended.append(sum(range(number)))
        raise RuntimeError("that is told, and nothing else")

    own = tidefs.Cache(sys.argv[1])
    own.register_with(lambda address, length: 7, end)
    own.put("registered", b"r" * MIB)
    is_fast = own.is_fast
    unraisable, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        views = [own.get("registered")]
        own.close()
        try:
            views.pop()["no index"]
            raise AssertionError("a view has no such item")
        except TypeError:
            pass
        del own
        gc.collect()
    finally:
        sys.unraisablehook = unraisable
    assert ended == ([21] if is_fast else []), ended


def a_forked_child_is_told_nothing_by_what_its_parent_kept(cache):
    assert cache.keep(64 * MIB) == cache.is_fast
    cache.put("kept", b"k" * 100_000)
    for _ in range(2):
        cache.get("kept").release()
    assert cache.contains("kept") and cache.statistics()["kept_views"] == int(cache.is_fast)
    is_gone, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert os.read(is_gone, 1) == b"g"
            assert not cache.contains("kept") and cache.prefix(["kept"]) == 0 and cache.get("kept") is None
            cache.flush()
            cache.close()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    # What nobody has a reference to goes without a change of the clock that the child sees as well.
    cache.flush()
    os.unlink(os.path.join(sys.argv[1], "kept"))
    os.write(tell, b"g")
    assert os.waitpid(child, 0)[1] == 0
    os.close(tell)
    os.close(is_gone)
