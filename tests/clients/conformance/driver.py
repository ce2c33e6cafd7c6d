"""Runs the cases of cases.txt through the Python package: driver.py ROOT CASES. See that file for what is said."""

import os
import sys
import zlib

import tidefs


def pattern(seed, length):
    period = bytes((seed + 7 * index) % 256 for index in range(251))
    return (period * (length // 251 + 1))[:length]


def total(data):
    with memoryview(data) as view:
        return f"{view.nbytes}:{zlib.crc32(view):08x}"


def found(view):
    return "miss" if view is None else total(view)


class Driver:
    def __init__(self, place):
        self.place = place
        self.cache = tidefs.Cache(place)
        self.writer = None
        self.held = None

    def path(self, key):
        return os.path.join(self.place, key)

    def run(self, operation, words):
        return getattr(self, f"do_{operation}")(*words)

    def do_put(self, key, seed, length):
        self.cache.put(key, pattern(int(seed), int(length)))

    def do_file(self, key, seed, length):
        with open(self.path(key) + ".tmp", "wb") as file:
            file.write(pattern(int(seed), int(length)))
        os.rename(self.path(key) + ".tmp", self.path(key))

    def do_get(self, key):
        return found(self.cache.get(key.encode()))

    def do_cat(self, key):
        with open(self.path(key), "rb") as file:
            return total(file.read())

    def do_lookup(self, *keys):
        return " ".join(found(view) for view in self.cache.lookup_many(keys))

    def do_into(self, key, capacity):
        target = bytearray(int(capacity))
        length = self.cache.get_into(key, target)
        if length is None:
            return "miss"
        return f"{length}/{total(target[: min(length, len(target))])}"

    def do_prefix(self, *keys):
        return str(self.cache.prefix(list(keys)))

    def do_keep(self, count):
        return "yes" if self.cache.keep(int(count)) else "no"

    def do_mode(self, mode):
        self.cache.set_mode(None if mode == "none" else int(mode, 8))

    def do_allowed(self, key):
        return f"{os.stat(self.path(key)).st_mode & 0o7777:o}"

    def do_prefetch(self, *keys):
        self.cache.prefetch(keys)

    def do_wait(self, key, limit):
        return found(self.cache.wait_ready(key, timeout=int(limit) / 1000))

    def do_range(self, key, start, length, limit):
        part = (int(start), int(start) + int(length))
        return found(self.cache.wait_ready(key, timeout=int(limit) / 1000, range=part))

    def do_pin(self, key, pin):
        return "ok" if self.cache.pin([key], pin) == 1 else "miss"

    def do_ready(self, start, length):
        self.writer.ready(int(start), int(start) + int(length))

    def do_create(self, key, size):
        self.writer = self.cache.create(key, int(size))

    def do_fill(self, seed):
        with memoryview(self.writer) as view:
            view[:] = pattern(int(seed), len(view))

    def do_seal(self):
        self.writer.seal()

    def do_seal_first(self, length):
        writer, self.writer = self.writer, None
        writer.seal(int(length))

    def do_drop(self):
        self.writer.abort()

    def do_many(self, count, length):
        self.cache.put_many([(f"m{index}", pattern(index, int(length))) for index in range(int(count))])

    def do_hold(self, key):
        self.held = self.cache.get(key)
        return found(self.held)

    def do_held(self):
        return found(self.held)

    def do_place(self, key):
        view = self.cache.get(key)
        return "in-place" if view.is_mapped == self.cache.is_fast else "elsewhere"

    def do_unlink(self, key):
        os.unlink(self.path(key))

    def do_anew(self, *keys):
        for key in keys:
            os.unlink(self.path(key))
        os.rmdir(self.place)
        os.mkdir(self.place)

    def do_give_way(self):
        os.rename(self.place, self.place + ".old")
        os.mkdir(self.place)


def main(root, table):
    driver = None
    with open(table, encoding="utf-8") as lines:
        for line in map(str.rstrip, lines):
            if not line or line.startswith("#"):
                continue
            if line.startswith("case "):
                driver = Driver(os.path.join(root, line.removeprefix("case ")))
                print(line)
                continue
            operation = line.split(" = ")[0]
            name, *words = operation.split(" ")
            try:
                result = driver.run(name, words) or "ok"
            except ValueError:
                result = "error 22"
            except OSError as error:
                result = f"error {error.errno}"
            print(f"{operation} = {result}")


main(*sys.argv[1:])
