"""What is asked for at once is handled at once; one item's failure and one caller's leave are theirs alone."""

import asyncio

import pytest

from gateway.together import Together


def doubling(calls):
    def handle(items):
        calls.append(list(items))
        return [2 * item for item in items]

    return Together(handle)


async def test_what_is_asked_for_in_one_round_is_handled_in_one_call():
    calls = []
    double = doubling(calls)
    assert await asyncio.gather(*(double(item) for item in (1, 2, 3))) == [2, 4, 6]
    assert await double(4) == 8
    assert calls == [[1, 2, 3], [4]]


async def test_a_failure_is_that_of_its_item_alone():
    double = Together(lambda items: [10 // item for item in items])
    found = await asyncio.gather(*(double(item) for item in (5, 0, 2)), return_exceptions=True)
    assert found[0] == 2
    assert isinstance(found[1], ZeroDivisionError)
    assert found[2] == 5


async def test_a_caller_that_leaves_does_not_disturb_the_others():
    calls = []
    double = doubling(calls)
    leaving, staying = asyncio.create_task(double(1)), asyncio.create_task(double(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 4
    with pytest.raises(asyncio.CancelledError):
        await leaving
