"""What the Python package does beyond the table of cases: buffers, arrays and tensors without a copy, lifetimes, threads.

tidefs_package.py DIRECTORY, which is a directory of a mount or of another filesystem.
"""

import ast
import ctypes
import gc
import importlib
import os
import pathlib
import sys
import threading
import time

import numpy
import tidefs

import cases
import ends
from cases import refused

MIB = 1 << 20


def segments_of_this_process():
    """Where segments of the cache are mapped: their first and last addresses."""
    ranges = []
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if "/.tidefs/segments/" in line:
                start, end = line.split(" ")[0].split("-")
                ranges.append((int(start, 16), int(end, 16)))
    return ranges


def lies_in_a_segment(address):
    return any(start <= address < end for start, end in segments_of_this_process())


def an_array_of_a_view_is_the_memory_of_the_cache(cache):
    cache.put("array", numpy.arange(MIB, dtype=numpy.uint32))
    before = cache.statistics()
    view = cache.get("array")
    arrays = [
        numpy.asarray(view).view(numpy.uint32),
        numpy.frombuffer(view, dtype=numpy.uint32),
        numpy.from_dlpack(view).view(numpy.uint32),
        numpy.asarray(memoryview(view)).view(numpy.uint32),
        numpy.asarray(type("ByAddress", (), {"__array_interface__": view.__array_interface__})()).view(numpy.uint32),
    ]
    addresses = {array.ctypes.data for array in arrays}
    assert len(addresses) == 1, addresses
    for array in arrays:
        assert not array.flags.writeable
        assert array[12345] == 12345 and array[-1] == MIB - 1
    after = cache.statistics()
    if cache.is_fast:
        assert lies_in_a_segment(addresses.pop())
        assert after["mapped_views"] == before["mapped_views"] + 1, (before, after)
        assert after["copied_bytes"] == before["copied_bytes"], (before, after)
    else:
        assert after["copied_bytes"] == before["copied_bytes"] + 4 * MIB, (before, after)


def what_is_made_of_a_view_keeps_its_bytes(cache):
    for make in [
        numpy.asarray,
        numpy.from_dlpack,
        memoryview,
        lambda view: numpy.asarray(type("A", (), {"__array_interface__": view.__array_interface__, "view": view})()),
    ]:
        cache.put("kept", b"x" * MIB)
        with cache.get("kept") as view:
            made = make(view)
        assert view.released
        del view
        cache.put("kept", b"y" * MIB)
        for index in range(20):
            cache.put(f"other{index}", bytes([index]) * MIB)
        cache.flush()
        gc.collect()
        assert bytes(made[:3]) == b"xxx" and bytes(made[-3:]) == b"xxx", make
        del made


def a_released_view_gives_nothing_more(cache):
    cache.put("released", b"z" * MIB)
    view = cache.get("released")
    assert len(view) == MIB and bytes(memoryview(view)[:2]) == b"zz"
    view.release()
    for call in [lambda: memoryview(view), lambda: view.__array_interface__, lambda: numpy.from_dlpack(view)]:
        assert "released" in refused((ValueError, BufferError), call)
    view.release()
    assert "released" in repr(view)


def dlpack_says_what_it_cannot(cache):
    cache.put("tensor", b"t" * 100_000)
    view = cache.get("tensor")
    assert view.__dlpack_device__() == (1, 0)
    assert "1.0" in refused(BufferError, view.__dlpack__)
    assert "1.0" in refused(BufferError, lambda: view.__dlpack__(max_version=(0, 8)))
    refused(BufferError, lambda: view.__dlpack__(max_version=(1, 0), dl_device=(2, 0)))
    refused(BufferError, lambda: view.__dlpack__(max_version=(1, 0), copy=True))
    refused(BufferError, lambda: view.__dlpack__(max_version=(1, 0), stream=1))
    capsule = view.__dlpack__(max_version=(1, 1))
    assert "dltensor_versioned" in repr(capsule)
    del capsule  # that nobody took


def a_writer_is_filled_in_place_and_sealed_at_the_end_of_its_block(cache):
    with cache.create("filled", 4 * MIB) as writer:
        assert writer.is_mapped == cache.is_fast
        array = numpy.frombuffer(writer, dtype=numpy.float32)
        array[:] = 1.5
        if cache.is_fast:
            assert lies_in_a_segment(array.ctypes.data)
        assert cache.get("filled") is None
        assert "still in use" in refused(BufferError, writer.seal)
        del array
        tensor = numpy.from_dlpack(writer)
        tensor[:4] = 0
        assert "still in use" in refused(BufferError, lambda: cache.seal_many([writer]))
        del tensor
        assert "twice" in refused(ValueError, lambda: cache.seal_many([writer, writer]))
        assert writer.write(numpy.float32(2.5).tobytes(), 8) == 4
        refused(ValueError, lambda: writer.write(b"12345", 4 * MIB - 4))
    found = numpy.asarray(cache.get("filled")).view(numpy.float32)
    assert (found[:4] == [0, 1.5, 2.5, 1.5]).all() and (found[4:] == 1.5).all()
    assert writer.closed
    refused(ValueError, writer.seal)
    refused(ValueError, lambda: memoryview(writer))


def an_exception_gives_the_object_up(cache):
    kept = []
    try:
        with cache.create("never", 100_000) as writer:
            kept.append(memoryview(writer))
            raise KeyError
    except KeyError:
        pass
    assert writer.closed and cache.get("never") is None
    # What was made of it may still be written, and changes nothing.
    kept.pop()[:5] = b"12345"
    del writer
    gc.collect()
    assert "never" not in cache


def keys_are_text_or_bytes(cache):
    cache.put("schlüssel", b"1" * 10)
    assert bytes(cache.get("schlüssel".encode())) == b"1" * 10
    raw = b"\xff\xfe"
    cache.put(os.fsdecode(raw), b"2")
    assert bytes(cache.get(raw)) == b"2"
    refused(TypeError, lambda: cache.get(1))
    refused(TypeError, lambda: cache.lookup_many("text"))
    refused(TypeError, lambda: cache.put("key", "text"))
    refused(ValueError, lambda: cache.get(""))


def buffers_of_any_shape_are_taken_and_read_only_ones_are_not_filled(cache):
    matrix = numpy.arange(60_000, dtype=numpy.int16).reshape(100, 600)
    cache.put_many([("matrix", matrix), ("empty", b""), ("bytearray", bytearray(b"abc"))])
    target = numpy.zeros((100, 600), dtype=numpy.int16)
    assert cache.get_into("matrix", target) == matrix.nbytes
    assert (target == matrix).all()
    assert bytes(cache.get("empty")) == b"" and bytes(cache.get("bytearray")) == b"abc"
    refused(BufferError, lambda: cache.get_into("matrix", b"read only"))
    refused((BufferError, ValueError), lambda: cache.put("strided", matrix[:, ::2]))


class Tensor:
    """An array that is shown as a tensor alone: torch has tensors that are no buffers."""

    def __init__(self, array, device=(1, 0), is_old=False, capsule=None):
        self.array, self.device, self.is_old, self.capsule = array, device, is_old, capsule

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **wishes):
        if self.is_old and wishes:
            raise TypeError("no such wishes")
        return self.capsule or self.array.__dlpack__(**wishes)


def tensors_of_the_host_are_taken_and_others_are_refused(cache):
    array = numpy.arange(100_000, dtype=numpy.float32).reshape(100, 1000)
    held = sys.getrefcount(array)
    for is_old in (False, True):
        for part in (array, array[30:70], array[7], array[:0], array[:, :0], array[5:6, 3:4], numpy.float64([[2]])[0, 0:1]):
            tensor = Tensor(part, is_old=is_old)
            cache.put("tensor", tensor)
            assert bytes(cache.get("tensor")) == part.tobytes(), (is_old, part.shape)
            target = numpy.zeros_like(part)
            assert cache.get_into("tensor", Tensor(target, is_old=is_old)) == part.nbytes
            assert (target == part).all()
    cache.put("a number", Tensor(numpy.array(7, dtype=numpy.int16)))
    assert bytes(cache.get("a number")) == b"\x07\0"
    # Memory that a driver registered is memory of the host.
    cache.put_many([("registered", Tensor(array, device=(3, 0)))])
    with cache.create("written", array.nbytes) as writer:
        assert writer.write(Tensor(array)) == array.nbytes
    assert bytes(cache.get("written")) == bytes(cache.get("registered")) == array.tobytes()

    assert "of a device" in refused(BufferError, lambda: cache.put("no", Tensor(array, device=(2, 0))))
    assert "contiguous" in refused(BufferError, lambda: cache.put("no", Tensor(array[:, ::2])))
    assert "contiguous" in refused(BufferError, lambda: cache.put("no", Tensor(array.T)))
    assert "no tensor" in refused(TypeError, lambda: cache.put("no", Tensor(array, capsule="none")))
    used = array.__dlpack__()
    cache.put("once", Tensor(array, capsule=used))
    assert "no tensor" in refused(TypeError, lambda: cache.put("no", Tensor(array, capsule=used)))
    fixed = array.copy()
    fixed.flags.writeable = False
    cache.put("fixed", Tensor(fixed))
    assert "only be read" in refused(BufferError, lambda: cache.get_into("fixed", Tensor(fixed)))
    refused(TypeError, lambda: cache.put("no", 7))
    assert cache.get("no") is None
    del used
    gc.collect()
    assert sys.getrefcount(array) == held, "a tensor was not given back"


def tensors_of_torch_go_in_and_come_out_where_it_is_installed(cache):
    try:
        import torch
    except ImportError:
        print("skipped: TIDEFS_TEST_PYTHON has no torch")
        return
    for kind in (torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool, torch.complex64, torch.float64):
        tensor = torch.arange(105).reshape(3, 5, 7).remainder(2).to(kind)
        cache.put("tensor", tensor)
        target = torch.empty_like(tensor)
        assert cache.get_into("tensor", target) == tensor.nbytes
        assert torch.equal(tensor.view(torch.uint8), target.view(torch.uint8)), kind
    block = torch.randn(1024, 1024).to(torch.bfloat16)
    with cache.create("block", block.nbytes) as writer:
        torch.from_dlpack(writer)[:] = block.view(torch.uint8).flatten()
    found = torch.from_dlpack(cache.get("block"))
    gc.collect()
    assert torch.equal(found.view(torch.bfloat16).view(1024, 1024), block)
    assert lies_in_a_segment(found.data_ptr()) == cache.is_fast
    refused(BufferError, lambda: cache.put("no", block.t()))
    refused(BufferError, lambda: cache.put("no", torch.randn(4, requires_grad=True)))
    assert cache.get("no") is None


def a_wait_lets_other_threads_run_and_ends_in_time(cache):
    started = time.monotonic()
    assert cache.wait_ready("later", timeout=0.02) is None
    assert time.monotonic() - started >= 0.02
    refused(ValueError, lambda: cache.wait_ready("later", timeout=float("nan")))
    found = []
    waiter = threading.Thread(target=lambda: found.append(cache.wait_ready("later", timeout=60)))
    waiter.start()
    # It could not be stored if the waiter kept the interpreter's lock.
    cache.put("later", b"l" * 50_000)
    waiter.join(60)
    assert bytes(found[0]) == b"l" * 50_000


def many_threads_share_one_cache(cache):
    failures = []

    def work(thread):
        try:
            for index in range(60):
                data = bytes([thread * 60 + index]) * 50_000
                cache.put(f"t{thread}-{index}", data)
                for view in cache.lookup_many([f"t{thread}-{index}"] * 20):
                    assert bytes(view) == data
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def what_was_found_outlives_its_cache(cache):
    other = tidefs.Cache(sys.argv[1])
    other.put("outlives", b"o" * 100_000)
    view, writer = other.get("outlives"), other.create("begun", 100_000)
    other.close()
    assert other.closed
    for call in [lambda: other.get("outlives"), lambda: other.is_fast, other.statistics]:
        assert "closed" in refused(ValueError, call)
    other.close()
    assert bytes(view) == b"o" * 100_000
    writer.write(b"b" * 100_000)
    writer.seal()
    assert bytes(cache.get("begun")) == b"b" * 100_000


def segments_are_pinned_once_and_let_go_before_they_are_unmapped(_cache):
    libc = ctypes.CDLL(None, use_errno=True)
    pinned, let_go = [], []

    def pin(address, length):
        assert libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(length)) == 0, os.strerror(ctypes.get_errno())
        assert not cache_is_fast or lies_in_a_segment(address)
        pinned.append((address, length))
        return address, length

    def let_go_of(pin):
        address, length = pin
        # It is mapped still.
        assert libc.munlock(ctypes.c_void_p(address), ctypes.c_size_t(length)) == 0, os.strerror(ctypes.get_errno())
        let_go.append(pin)

    cache = tidefs.Cache(sys.argv[1])
    cache_is_fast = cache.is_fast
    keys = [f"pinned{index}" for index in range(4)]
    cache.put_many([(key, b"p" * MIB) for key in keys])
    with cache.get(keys[0]):
        cache.register_with(pin, let_go_of)
        views = cache.lookup_many(keys) + cache.lookup_many(keys)
    assert all(view.is_registered == cache_is_fast for view in views)
    assert len(pinned) == len(set(pinned)) and (len(pinned) >= len(keys)) == cache_is_fast, pinned
    threads = [threading.Thread(target=lambda: [cache.get(key) for key in keys] and cache.mapped_segments) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.close()
    assert bytes(views[1]) == b"p" * MIB, "a view keeps its segment"
    del views
    gc.collect()
    assert sorted(let_go) == sorted(pinned), (let_go, pinned)
    # An exception leaves the segment as it is, and takes nobody with it.
    with tidefs.Cache(sys.argv[1]) as other:
        seen = []
        sys.unraisablehook, before = (lambda unraisable: seen.append(unraisable.exc_value)), sys.unraisablehook
        other.register_with(lambda address, length: 1 / 0)
        view = other.get(keys[0])
        sys.unraisablehook = before
        assert bytes(view) == b"p" * MIB and not view.is_registered
        assert bool(seen) == cache_is_fast and all(isinstance(error, ZeroDivisionError) for error in seen)


def a_failure_is_the_error_of_its_number(cache):
    refused(FileNotFoundError, lambda: tidefs.Cache("/nowhere/at/all"))
    refused(NotADirectoryError, lambda: tidefs.Cache(__file__))
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        assert "the CUDA driver cannot be loaded" in refused(OSError, cache.register_with_cuda)
    for path in (pathlib.Path(sys.argv[1]), os.fsencode(sys.argv[1])):
        assert tidefs.Cache(path).is_fast == cache.is_fast


def the_hints_name_what_there_is(_cache):
    folder = pathlib.Path(tidefs.__file__).parent
    assert (folder / "py.typed").exists()
    hints = ast.parse((folder / "__init__.pyi").read_text(encoding="utf-8"))
    classes = {node.name: node for node in hints.body if isinstance(node, ast.ClassDef)}
    # They hold on the oldest Python that there is a wheel for; type checkers bring typing_extensions along.
    for node in hints.body:
        if isinstance(node, ast.ImportFrom) and node.module != "typing_extensions":
            for imported in node.names:
                assert hasattr(importlib.import_module(node.module), imported.name), (node.module, imported.name)
    # What every object has, or has since a later Python than the oldest.
    ordinary = set(dir(object)) | {"__buffer__", "__release_buffer__", "__new__", "__repr__", "__module__"}
    for name in ("Cache", "View", "Writer"):
        hinted = {node.name for node in classes[name].body if isinstance(node, ast.FunctionDef)} - ordinary
        there = set(dir(getattr(tidefs, name))) - ordinary
        assert hinted == there, (name, hinted ^ there)
        for attribute in there:
            assert getattr(getattr(tidefs, name), attribute).__doc__, (name, attribute)
    assert set(tidefs.__all__) == {"Cache", "View", "Writer", "__version__"}


cases.run(
    [
        an_array_of_a_view_is_the_memory_of_the_cache,
        what_is_made_of_a_view_keeps_its_bytes,
        a_released_view_gives_nothing_more,
        dlpack_says_what_it_cannot,
        a_writer_is_filled_in_place_and_sealed_at_the_end_of_its_block,
        an_exception_gives_the_object_up,
        keys_are_text_or_bytes,
        buffers_of_any_shape_are_taken_and_read_only_ones_are_not_filled,
        tensors_of_the_host_are_taken_and_others_are_refused,
        tensors_of_torch_go_in_and_come_out_where_it_is_installed,
        a_wait_lets_other_threads_run_and_ends_in_time,
        many_threads_share_one_cache,
        what_was_found_outlives_its_cache,
        ends.a_forked_child_gives_nothing_of_its_parent_back,
        ends.a_forked_child_is_told_nothing_by_what_its_parent_kept,
        ends.a_forked_child_lets_go_of_a_writer_that_another_thread_fills,
        ends.what_a_parent_held_is_given_back_when_it_closes_though_its_child_lives,
        ends.an_exception_on_its_way_is_not_lost_in_what_ends_a_registration,
        segments_are_pinned_once_and_let_go_before_they_are_unmapped,
        a_failure_is_the_error_of_its_number,
        the_hints_name_what_there_is,
    ]
)
