"""What the scripts that try the Python package share: each case is a function of a fresh cache."""

import os
import sys

import tidefs


def refused(kind, call):
    """What the error of that kind says which the call raises."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")


def run(cases):
    """Runs each in the directory that the command line names, and says so."""
    for case in cases:
        with tidefs.Cache(sys.argv[1]) as cache:
            assert cache.is_fast == (os.environ["TIDEFS_EXPECT_FAST"] == "1")
            case(cache)
        print("ok", case.__name__)
