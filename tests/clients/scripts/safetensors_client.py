"""The real safetensors library with numpy: save_file, load_file by mmap, many processes on the same and other keys."""

import multiprocessing
import os
import sys

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from clientlib import run


def tensors(key, version):
    """Four layers whose every element follows from key and version."""
    layers = {}
    for layer in range(4):
        chooser = numpy.random.default_rng([key, version, layer])
        layers[f"layers.{layer}.kv"] = chooser.integers(0, 1 << 16, (64, 33 + layer, 16), dtype=numpy.uint16)
    layers["stamp"] = numpy.array([key, version], dtype=numpy.int64)
    return layers


def check(loaded, key):
    """`loaded` is one whole version of `key`; returns which."""
    stamped, version = loaded["stamp"].tolist()
    assert stamped == key, f"asked for key {key}, got key {stamped}"
    wanted = tensors(key, version)
    assert sorted(loaded) == sorted(wanted)
    for name, tensor in wanted.items():
        assert numpy.array_equal(loaded[name], tensor), f"{name} of key {key}, version {version} differs"
    return version


def save_then_load(root):
    """What was saved comes back by load_file and by safe_open, tensor by tensor and in slices."""
    for key in range(6):
        path = os.path.join(root, f"{key}.safetensors")
        save_file(tensors(key, 1), path, metadata={"key": str(key)})
        assert check(load_file(path), key) == 1
        with safe_open(path, framework="numpy") as file:
            assert file.metadata() == {"key": str(key)}
            wanted = tensors(key, 1)
            for name in file.keys():
                assert numpy.array_equal(file.get_tensor(name), wanted[name])
            part = file.get_slice("layers.0.kv")[3:9]
            assert numpy.array_equal(part, wanted["layers.0.kv"][3:9])


def loaded_tensors_outlive_replace_and_unlink(root):
    """A file mapped by safe_open keeps its version when the name gets another one, and when it is removed."""
    path = os.path.join(root, "one.safetensors")
    save_file(tensors(7, 1), path)
    with safe_open(path, framework="numpy") as file:
        save_file(tensors(7, 2), path)
        loaded = {name: file.get_tensor(name) for name in file.keys()}
        assert check(loaded, 7) == 1
        assert check(load_file(path), 7) == 2
        os.unlink(path)
        loaded = {name: file.get_tensor(name) for name in file.keys()}
        assert check(loaded, 7) == 1


def _work(root, number, told):
    try:
        looks = 0
        for turn in range(12):
            # one key that everybody saves, one that only this process saves
            for key in (0, 100 + number):
                save_file(tensors(key, turn * 16 + number), os.path.join(root, f"{key}.safetensors"))
            for key in (0, 100 + (number + turn) % 6):
                try:
                    check(load_file(os.path.join(root, f"{key}.safetensors")), key)
                    looks += 1
                except FileNotFoundError:
                    pass
        told.put(("ok", looks))
    except BaseException as error:
        told.put(("failed", f"process {number}: {error!r}"))


def concurrent_processes(root):
    """Six processes save and load the same and different keys: every load is one whole version."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    workers = [context.Process(target=_work, args=(root, number, told)) for number in range(6)]
    for worker in workers:
        worker.start()
    answers = [told.get(timeout=240) for _ in workers]
    for worker in workers:
        worker.join(30)
    assert all(kind == "ok" for kind, _ in answers), answers
    assert sum(looks for _, looks in answers) > 60, answers
    left = [name for name in os.listdir(root) if not name.endswith(".safetensors")]
    assert left == [], left


def vllm_example_connector(root):
    """The folder is the hit and is made first; a layer per file; the reader loads each layer."""
    folder = os.path.join(root, "0123456789abcdef0123456789abcdef")
    assert not os.path.exists(folder)
    os.makedirs(folder, exist_ok=True)
    for layer in range(8):
        save_file({"kv_cache": tensors(layer, 3)["layers.0.kv"]}, os.path.join(folder, f"layer{layer}.safetensors"))
    assert os.path.exists(folder)
    for layer in range(8):
        loaded = load_file(os.path.join(folder, f"layer{layer}.safetensors"))["kv_cache"]
        assert numpy.array_equal(loaded, tensors(layer, 3)["layers.0.kv"])


if __name__ == "__main__":
    if sys.argv[1:] == []:
        sys.exit("usage: safetensors_client.py DIR")
    run(
        [
            save_then_load,
            loaded_tensors_outlive_replace_and_unlink,
            concurrent_processes,
            vllm_example_connector,
        ]
    )
