"""Which memory is moved into huge pages."""

from cli.huge_pages import _regions, use_huge_pages

HUGE = 2 << 20
MAPS = """\
7f0000000000-7f0000600000 rw-p 00000000 00:00 0
7f0000700000-7f0000a00000 rw-p 00000000 00:00 0
7f0001000000-7f0001100000 rw-p 00000000 00:00 0
7f0002000000-7f0002800000 r--p 00000000 00:00 0
7f0003000000-7f0003800000 rw-p 00000000 08:01 77                         /lib/libc.so
7f0004000000-7f0004800000 rw-s 00000000 00:00 0
7f0005000000-7f0005800000 rw-p 00000000 00:00 0                          [stack]
55000000f000-550000410000 rw-p 00000000 00:00 0                          [heap]
"""


def test_whole_huge_pages_of_private_memory_and_nothing_else():
    found = _regions(MAPS)
    assert found == [
        (0x7F0000000000, 0x7F0000600000),
        (0x7F0000800000, 0x7F0000A00000),
        (0x550000200000, 0x550000400000),
    ]
    assert all(first % HUGE == last % HUGE == 0 for first, last in found)


def test_contents_stay_as_they_are():
    kept = [bytes([number % 251]) * 4096 for number in range(3000)]
    use_huge_pages()
    assert all(block == bytes([number % 251]) * 4096 for number, block in enumerate(kept))
