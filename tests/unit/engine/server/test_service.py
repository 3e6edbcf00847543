"""Requests between the event loop and the step thread: cancelled, refused in part, ended by shutdown."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import EngineError, QueueFull
from engine.messages import Speculation
from engine.models import LoadedModel
from engine.sequence import GenerateRequest, SamplingParams, StepOutput
from engine.server.service import EngineService


class WatchedCore(EngineCore):
    """Tells how requests ended, and lets a test hold `add` up."""

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model, EngineConfig(dtype="float32", device="cpu", profile=False, max_batch=1, max_waiting=1))
        self.gate = threading.Event()
        self.gate.set()
        self.adding = threading.Event()
        self.ended: list[tuple[str, str]] = []

    def add(self, request: GenerateRequest) -> None:
        self.adding.set()
        assert self.gate.wait(60)
        super().add(request)

    def step(self) -> list[StepOutput]:
        outputs = super().step()
        self.ended += [(one.request_id, one.finish_reason) for one in outputs if one.finish_reason]
        return outputs


@pytest.fixture
async def service(tiny_target: LoadedModel) -> AsyncIterator[EngineService]:
    service = EngineService(WatchedCore(tiny_target))
    service.start()
    yield service
    service.stop()


def request(name: str, tokens: int, grammar: dict[str, object] | None = None) -> GenerateRequest:
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, grammar=grammar)
    return GenerateRequest(name, [1, 20, 30], sampling, Speculation("plain", 0))


def core_of(service: EngineService) -> WatchedCore:
    assert isinstance(service.core, WatchedCore)
    return service.core


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the step thread does, without holding up the event loop."""

    def poll() -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    await asyncio.to_thread(poll)


async def test_outputs_arrive_in_order_and_end(service: EngineService) -> None:
    generation = await service.submit([request("a", 5)])
    tokens = [token async for _, output in generation for token in output.token_ids]
    generation.close()
    assert len(tokens) == 5
    assert core_of(service).ended == [("a", "length")]
    assert service.open_requests == 0


async def test_cancelled_while_its_schema_is_compiled(service: EngineService) -> None:
    core = core_of(service)
    core.gate.clear()
    task = asyncio.create_task(service.submit([request("a", 900, grammar={})]))
    await until(core.adding.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    core.gate.set()
    await until(lambda: bool(core.ended))
    assert core.ended == [("a", "abort")]
    assert service.open_requests == 0


async def test_what_does_not_fit_takes_the_rest_with_it(service: EngineService) -> None:
    with pytest.raises(QueueFull):
        await service.submit([request(f"r{i}", 900) for i in range(8)])
    core = core_of(service)
    await until(lambda: bool(core.ended) and not core.has_work())  # what has no work left may not have said so yet
    assert {reason for _, reason in core.ended} == {"abort"}
    assert service.open_requests == 0


async def test_closing_twice_is_closing_once(service: EngineService) -> None:
    generation = await service.submit([request("a", 900)])
    generation.close()
    generation.close()
    await until(lambda: bool(core_of(service).ended) and not service.core.has_work())
    assert core_of(service).ended == [("a", "abort")]


async def test_shutdown_fails_what_is_open(tiny_target: LoadedModel) -> None:
    service = EngineService(WatchedCore(tiny_target))
    service.start()
    generation = await service.submit([request("a", 1000)])
    service.stop()
    with pytest.raises(EngineError, match="shutting down"):
        async for _ in generation:
            pass
    generation.close()
