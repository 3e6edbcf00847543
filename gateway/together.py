"""Does at once what several tasks ask for in one round of the event loop. Used by `serve` to classify requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Together(Generic[Item, Result]):
    """Collects items until the loop comes round, then has them handled in one call."""

    def __init__(self, handle: Callable[[Sequence[Item]], Sequence[Result]]) -> None:
        self._handle = handle
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []

    async def __call__(self, item: Item) -> Result:
        """Return what became of an item. Raises what handling it alone raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._handle_all)
        return await answer

    def _handle_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            results = self._handle([item for item, _ in waiting])
        except Exception:  # one item's failure is not the others'
            for each in waiting:
                self._handle_one(*each)
            return
        for (_, answer), result in zip(waiting, results, strict=True):
            if not answer.done():
                answer.set_result(result)

    def _handle_one(self, item: Item, answer: asyncio.Future[Result]) -> None:
        if answer.done():  # whoever asked has been cancelled
            return
        try:
            (result,) = self._handle([item])
        except Exception as error:
            answer.set_exception(error)
        else:
            answer.set_result(result)
