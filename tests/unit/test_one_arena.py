"""A process's threads share one heap of the C library."""

import subprocess
import sys

import pytest

COUNT = """
import ctypes, sys, threading
from rpc.one_arena import use_one_arena

if sys.argv[1] == "one":
    use_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
libc.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
together = threading.Barrier(4)

def take():
    together.wait()
    libc.free(libc.malloc(1000))
    together.wait()

threads = [threading.Thread(target=take) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
out = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, out)
libc.fclose(out)
"""


def heaps(how_many: str) -> int:
    command = [sys.executable, "-c", COUNT, how_many]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.count("<heap nr=")


def test_threads_share_one_heap() -> None:
    if heaps("as many as there are threads") == 1:
        pytest.skip("this C library has one heap anyway")
    assert heaps("one") == 1
