"""Reads and writes a tidefs cache without a copy.

`Cache` finds objects, many with one request. A `View` is the bytes of one where they lie in the cache: they do not change
and do not leave while anything made of the view is in use. A `Writer` is memory of the cache that becomes an object when it
is sealed. Both are buffers: memoryview(), bytes(), numpy.asarray(), torch.frombuffer() and from_dlpack() take them.
"""

from ._tidefs import Cache, View, Writer, __version__

__all__ = ["Cache", "View", "Writer", "__version__"]
