"""Between HTTP and the core: submits requests, hands each its outputs on the event loop, ends what nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from engine.errors import EngineDead, EngineError
from engine.sequence import GenerateRequest, StepOutput
from engine.server.loop import Core, StepLoop


class Generation:
    """The outputs of one HTTP request: one sequence for each choice. Iterate it, and always `close` it."""

    def __init__(self, service: EngineService, ids: Sequence[str]) -> None:
        self._service = service
        self._index = {request_id: at for at, request_id in enumerate(ids)}
        self._open = set(ids)
        self.closed = False
        self._queue: asyncio.Queue[StepOutput | EngineError] = asyncio.Queue()

    def put(self, item: StepOutput | EngineError) -> None:
        """Take an output, or the error that ends everything; on the event loop."""
        self._queue.put_nowait(item)

    async def __aiter__(self) -> AsyncIterator[tuple[int, StepOutput]]:
        """Yield (choice, output) until each choice has finished. Raises EngineError where the engine fails."""
        while self._open:
            item = await self._queue.get()
            if isinstance(item, EngineError):
                raise item
            if item.finish_reason in {"error", "abort"}:
                raise EngineError(item.error or "the engine ended this request")
            if item.finish_reason is not None:
                self._open.discard(item.request_id)
            yield self._index[item.request_id], item

    def close(self) -> None:
        """Abort what is unfinished; never awaits, so that it works while being cancelled. Idempotent."""
        for request_id in self._index:
            self._service.forget(request_id, abort=request_id in self._open)
        self._open.clear()
        self.closed = True


class EngineService:
    """Owns the step loop and the table of open generations. Used on one event loop only."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._generations: dict[str, Generation] = {}
        self._events: asyncio.AbstractEventLoop | None = None
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="schemas")
        self._steps = StepLoop(core, self._from_step_thread, self._on_death)

    def start(self) -> None:
        """Start stepping; call on the event loop that serves."""
        self._events = asyncio.get_running_loop()
        self._steps.start()

    def stop(self, wait_s: float = 5.0) -> None:
        """Stop stepping; what is still open fails."""
        self.fail_all(EngineError("the engine is shutting down"))
        self._steps.stop(wait_s)
        self._compiling.shutdown(wait=False, cancel_futures=True)
        self._events = None

    @property
    def dead(self) -> EngineDead | None:
        """Why the step loop has ended; None while it lives."""
        return self._steps.dead

    @property
    def open_requests(self) -> int:
        """Sequences whose output someone still awaits."""
        return len(self._generations)

    async def submit(self, requests: Sequence[GenerateRequest]) -> Generation:
        """Queue all choices of one HTTP request, or none. Raises EngineDead, QueueFull, RequestRejected."""
        generation = Generation(self, [request.request_id for request in requests])
        for request in requests:
            self._generations[request.request_id] = generation
        try:
            if requests[0].sampling.grammar is None:
                self._add(requests, generation)
            else:  # compiling a schema may take long
                await asyncio.get_running_loop().run_in_executor(self._compiling, self._add, requests, generation)
        except BaseException:
            generation.close()
            raise
        return generation

    def _add(self, requests: Sequence[GenerateRequest], generation: Generation) -> None:
        for request in requests:
            self._steps.add(request)
        if generation.closed:  # while a schema was compiled
            for request in requests:
                self._steps.abort(request.request_id)

    def forget(self, request_id: str, *, abort: bool) -> None:
        """Stop delivering a request's outputs, and end it where it still runs."""
        if self._generations.pop(request_id, None) is not None and abort and self.dead is None:
            self._steps.abort(request_id)

    def fail_all(self, error: EngineError) -> None:
        """End every open generation with an error."""
        for generation in set(self._generations.values()):
            generation.put(error)

    def _from_step_thread(self, outputs: list[StepOutput]) -> None:
        self._on_event_loop(lambda: self._dispatch(outputs))

    def _on_death(self, error: EngineDead) -> None:
        self._on_event_loop(lambda: self.fail_all(error))

    def _on_event_loop(self, call: Callable[[], None]) -> None:
        events = self._events  # once: `stop` may clear it meanwhile
        if events is not None:
            with contextlib.suppress(RuntimeError):  # closed: nobody is left to tell
                events.call_soon_threadsafe(call)

    def _dispatch(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            generation = self._generations.get(output.request_id)
            if generation is not None:
                generation.put(output)
