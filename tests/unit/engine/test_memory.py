"""A long-running engine keeps the size it starts with."""

import subprocess
import sys

from engine.lean_runner import padded

CHURN = """
import ctypes, os
from engine.memory import limit_growth
limit_growth()
assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "160"
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def take(size):
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    return block

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

libc.free(take(24 << 20))  # teaches glibc to keep blocks up to this size in its heap
before = resident()
blocks = [take(1 << 20) for _ in range(128)]
for block in blocks[:-1]:
    libc.free(block)  # the last one stays, above all others
print(resident() - before)
"""


def test_freed_memory_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", CHURN], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 16 << 20


def test_products_meet_few_sizes() -> None:
    sizes = {padded(tokens) for tokens in range(1, 1025)}
    assert len(sizes) <= 30
    assert all(padded(tokens) == tokens for tokens in range(1, 9))
    assert all(tokens <= padded(tokens) < tokens + 128 for tokens in range(1, 1025))
