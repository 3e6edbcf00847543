"""A long-running engine keeps the size it starts with."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.lean_runner import padded

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CHURN = """
import ctypes, os
from engine.memory import set_memory_up
set_memory_up()
assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "160"
assert os.environ["THP_MEM_ALLOC_ENABLE"] == "1"
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
    assert [padded(tokens) for tokens in range(1, 9)] == [1, 4, 4, 4, 5, 6, 7, 8]
    assert [padded(tokens) for tokens in (9, 12, 13, 17, 21, 25)] == [12, 12, 16, 20, 24, 32]
    assert all(tokens <= padded(tokens) < tokens + 128 for tokens in range(1, 1025))


HUGE = """
from engine.memory import set_memory_up
set_memory_up()
import torch
kept = torch.ones(16 << 20, dtype=torch.int8)
size = wanted = 0
with open("/proc/self/smaps") as file:
    for line in file:
        if line.startswith("Size:"):
            size = int(line.split()[1]) << 10
        elif line.startswith("VmFlags:") and "hg" in line.split():
            wanted += size
print(wanted)
"""


@pytest.mark.skipif(
    not SETTING.is_file() or "[never]" in SETTING.read_text(), reason="this kernel gives nobody huge pages"
)
def test_huge_pages_are_asked_for_weights() -> None:
    """Whether the kernel has any to give at the moment is its own affair."""
    done = subprocess.run([sys.executable, "-c", HUGE], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 16 << 20
