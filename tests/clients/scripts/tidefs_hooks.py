"""Functions given to register_with run with the interpreter's lock, on any thread, when a segment is mapped and before it is
unmapped: nobody who has that lock waits for them.

tidefs_hooks.py DIRECTORY, which is a directory of a mount with the fast path. What hangs ends it with a trace of all threads.
"""

import faulthandler
import os
import sys
import threading
import time

import tidefs

MIB = 1 << 20
HANG = 30


def give_up_a_segment(cache, key):
    """Has the daemon unlink a segment that this process has mapped: the next request is told."""
    cache.put(key, b"g" * MIB)
    cache.get(key).release()
    cache.flush()
    path = os.path.join(sys.argv[1], key)
    # Whoever opened the file promised nothing, so the segment is not used again.
    with open(path, "rb") as file:
        file.read(1)
    os.unlink(path)


def others_use_a_writer_while_a_registration_ends(cache):
    is_ending = threading.Event()

    def end(_registration):
        is_ending.set()
        time.sleep(0.2)

    cache.register_with(lambda address, length: address, end)
    writer = cache.create("writer", MIB)
    writer.write(b"w" * MIB)
    give_up_a_segment(cache, "given up")
    shower = threading.Thread(target=writer.ready, args=(0, 4096))
    shower.start()
    assert is_ending.wait(HANG), "the segment was not unmapped"
    # The other thread is in `end` and wants the interpreter's lock back.
    assert not writer.closed
    with memoryview(writer) as view:
        view[5000:5005] = b"01234"
    shower.join()
    writer.seal()
    assert bytes(cache.get("writer"))[4999:5006] == b"w01234w"


def a_part_of_a_sealed_object_is_refused(cache):
    is_ending, is_sealed = threading.Event(), threading.Event()
    cache.register_with(lambda address, length: address, lambda registration: is_ending.set() or is_sealed.wait(HANG))
    writer = cache.create("sealed", MIB)
    give_up_a_segment(cache, "given up")
    # The reply to this one comes before the seal; none that comes after it shows anything.
    shower = threading.Thread(target=writer.ready, args=(0, 4096))
    shower.start()
    assert is_ending.wait(HANG)
    writer.seal()
    is_sealed.set()
    shower.join()
    try:
        writer.ready(0, 4096)
    except ValueError as error:
        assert "sealed" in str(error)
    else:
        raise AssertionError("it was sealed")


def a_function_may_let_go_of_views(cache):
    cache.put("viewed", b"v" * 100_000)
    views = cache.lookup_many(["viewed"] * 1100)
    give_up_a_segment(cache, "given up")

    def register(address, _length):
        # As the collector of cycles may do at any moment: so many ask the daemon, and are told of what is no more.
        views.clear()
        return address

    cache.register_with(register, lambda registration: None)
    assert not views
    cache.put("new", b"n" * MIB)


def views_end_while_another_thread_registers(cache):
    cache.put("viewed", b"v" * 100_000)
    views = cache.lookup_many(["viewed"] * 1100)
    give_up_a_segment(cache, "given up")
    is_registering = threading.Event()

    def register(address, _length):
        is_registering.set()
        time.sleep(0.05)
        return address

    registrar = threading.Thread(target=cache.register_with, args=(register, lambda registration: None))
    registrar.start()
    assert is_registering.wait(HANG)
    views.clear()
    registrar.join()


def a_cache_is_dropped_while_what_it_kept_goes_back(_cache):
    """By its last reference, with the interpreter's lock, which the thread that gives things back wants meanwhile."""
    is_ending = threading.Event()

    def end(_registration):
        is_ending.set()
        time.sleep(0.2)

    other = tidefs.Cache(sys.argv[1])
    other.register_with(lambda address, length: address, end)
    assert other.keep(64 * MIB)
    give_up_a_segment_unseen(other, "kept as well", "given up")
    assert is_ending.wait(HANG), "the segment was not unmapped"
    del other
    assert not any(thread == "tidefs-kept\n" for thread in threads_of_the_process())


def give_up_a_segment_unseen(cache, kept, key):
    """The same as above, with what is kept going next: who gives that back is told."""
    cache.put(key, b"g" * MIB)
    cache.get(key).release()
    cache.flush()
    cache.put(kept, b"k" * MIB)
    cache.get(kept).release()
    path = os.path.join(sys.argv[1], key)
    with open(path, "rb") as file:
        file.read(1)
    os.unlink(path)
    os.unlink(os.path.join(sys.argv[1], kept))


def threads_of_the_process():
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm", encoding="utf-8") as name:
            yield name.read()


def main():
    cases = [
        others_use_a_writer_while_a_registration_ends,
        a_part_of_a_sealed_object_is_refused,
        a_function_may_let_go_of_views,
        views_end_while_another_thread_registers,
        a_cache_is_dropped_while_what_it_kept_goes_back,
    ]
    for case in cases:
        faulthandler.dump_traceback_later(HANG, exit=True)
        with tidefs.Cache(sys.argv[1]) as cache:
            assert cache.is_fast
            case(cache)
        faulthandler.cancel_dump_traceback_later()
        print("ok", case.__name__)


main()
