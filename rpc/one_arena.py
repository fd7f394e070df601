"""How many heaps the C library keeps for a process's threads: one."""

import ctypes

_M_ARENA_MAX = -8
"""malloc.h of glibc."""


def use_one_arena() -> None:
    """To be called before threads start.

    gRPC's threads come and go, and glibc gives each its own heap, up to 8 per core, which stays: a process
    seems to leak 100-300 bytes per RPC until the last of them has had its peak. A C library that
    is not glibc has no such heaps.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
