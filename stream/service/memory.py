"""Memory that a process at full rate uses again, instead of returning and requesting it."""

import ctypes
import gc

import pyarrow as pa

MAPPED_BYTES = 256 << 20
"""Longer buffers still come from the kernel each time and return to it."""

SPARE_BYTES = 512 << 20
"""This much may lie unused at the end of the heap before it shrinks."""

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_memory() -> bool:
    """Have NumPy and Arrow share one heap that keeps freed memory; call it before threads start.

    By default glibc maps every long buffer again, each thread has a heap of its own, and Arrow another allocator. At
    millions of events per second the kernel then spends more time on clearing pages than the process on reading them.
    ``pyarrow``'s ``release_unused`` still returns what is free.

    Returns:
        Whether this was possible: the C library is glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    for option, value in (
        (_M_MMAP_THRESHOLD, MAPPED_BYTES),
        (_M_TRIM_THRESHOLD, SPARE_BYTES),
        (_M_ARENA_MAX, 1),
    ):
        mallopt(option, value)
    pa.set_memory_pool(pa.system_memory_pool())
    return True


def give_back_memory() -> None:
    """Free the memory of a pipeline that has ended.

    Its objects refer to each other and hold whole polls: few objects, so that the collector would not run for long, but
    many megabytes.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
