"""Admission, chunks, fairness, pre-emption and the queue bound, without a model."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from engine.control import Controller
from engine.errors import QueueFull
from engine.messages import Speculation
from engine.scheduler import MAX_STALLS, Scheduler
from engine.sequence import GenerateRequest, SamplingParams, Sequence


@dataclass
class Row:
    """Counts what a KV row would hold."""

    length: int = 0
    capacity: int = 0


class Memory:
    """A budget in tokens."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0

    def admit(self, sequence: Sequence) -> bool:
        sequence.kv = Row()  # type: ignore[assignment]
        if not self.reserve(sequence, len(sequence.tokens) + 1):
            sequence.kv = None
            return False
        return True

    def reserve(self, sequence: Sequence, tokens: int) -> bool:
        row = sequence.row
        more = max(0, tokens - row.capacity)
        if self.used + more > self.total:
            return False
        self.used += more
        row.capacity += more
        return True

    def release(self, sequence: Sequence) -> None:
        if sequence.kv is not None:
            self.used -= sequence.kv.capacity
            sequence.kv = None


def sequence(name: str, prompt: int, key: str = "", arrived: float = 0.0) -> Sequence:
    asked = GenerateRequest(name, [5] * prompt, SamplingParams(), Speculation("plain", 0), cache_key=key)
    return Sequence(asked, Controller(0, None), arrived, list(asked.prompt_ids), prompt)


def scheduler(total: int = 10_000, **limits: int) -> Scheduler:
    settings = {"max_batch": 4, "max_waiting": 8, "prefill_chunk": 10, "max_k": 4} | limits
    return Scheduler(Memory(total), **settings)


def names(sequences: list[Sequence]) -> list[str]:
    return [one.request_id for one in sequences]


def compute(one: Sequence, tokens: int) -> None:
    one.row.length += tokens


def test_a_long_prompt_comes_in_chunks_beside_running_requests() -> None:
    made = scheduler()
    made.add(sequence("short", 1))
    made.add(sequence("long", 35))
    for expected in (10, 10, 10, 5):
        plan = made.schedule()
        assert names(plan.decodes) == ["short"]
        assert [(one.request_id, take) for one, take in plan.prefills] == [("long", expected)]
        compute(plan.prefills[0][0], expected)


def test_chunks_are_larger_while_nothing_decodes() -> None:
    made = scheduler()
    made.add(sequence("long", 35))
    assert made.schedule().prefills[0][1] == 35


def test_prompts_share_the_chunk() -> None:
    made = scheduler()
    for name in ("run", "a", "b", "c"):
        made.add(sequence(name, 1 if name == "run" else 7))
    assert [take for _, take in made.schedule().prefills] == [7, 3]


def test_the_batch_is_bounded_and_order_kept() -> None:
    made = scheduler(max_batch=2)
    for name in "abc":
        made.add(sequence(name, 1))
    assert names(made.schedule().decodes) == ["a", "b"]
    made.finish(made.running[0])
    assert names(made.schedule().decodes) == ["b", "c"]
    assert made.waiting == 0


def test_tenants_take_turns() -> None:
    made = scheduler(max_batch=4)
    for at in range(6):
        made.add(sequence(f"greedy{at}", 1, key="greedy"))
    made.add(sequence("modest0", 1, key="modest"))
    made.add(sequence("modest1", 1, key="modest"))
    assert names(made.schedule().decodes) == ["greedy0", "modest0", "greedy1", "modest1"]


def test_whoever_was_passed_too_often_goes_first() -> None:
    made = scheduler(max_batch=2)
    made.add(sequence("hog", 1, key="a"))
    made.schedule()
    old = sequence("old", 1, key="a")
    old.stalled = MAX_STALLS
    made.add(old)
    made.add(sequence("new", 1, key="b", arrived=1.0))
    assert names(made.schedule().decodes) == ["hog", "old"]


def test_no_room_keeps_a_request_waiting_without_overtaking() -> None:
    made = scheduler(total=60)
    made.add(sequence("a", 30))
    made.add(sequence("b", 40))
    made.add(sequence("c", 5))
    made.schedule()
    assert names(made.running) == ["a"]
    assert made.waiting == 2


def test_the_youngest_steps_back_and_returns_first() -> None:
    made = scheduler(total=60)
    old, young, later = sequence("old", 20), sequence("young", 20), sequence("later", 30)
    made.add(old)
    made.add(young)
    made.schedule()
    made.add(later)
    for one in (old, young):
        compute(one, 19)
    for _ in range(30):
        old.tokens.append(7)
        compute(old, 1)
        made.schedule()
    assert names(made.running) == ["old"]
    assert made.preemptions == 1  # and not once per step
    made.finish(old)
    made.schedule()
    assert names(made.running)[0] == "young"
    assert young.num_uncomputed == 20


def test_removal_finds_waiting_and_running() -> None:
    made = scheduler(max_batch=1)
    for name in "abc":
        made.add(sequence(name, 1))
    made.schedule()
    gone = made.remove(lambda one: one.request_id in {"a", "c"})
    assert sorted(names(gone)) == ["a", "c"]
    assert all(one.kv is None for one in gone)
    assert names(made.schedule().decodes) == ["b"]


def test_the_queue_is_bounded() -> None:
    made = scheduler(max_waiting=2)
    made.check_room(1, retry_after_s=3.0)
    with pytest.raises(QueueFull, match="2 requests are waiting") as full:
        made.check_room(2, retry_after_s=3.0)
    assert full.value.retry_after_s == 3.0


def test_an_empty_plan_is_falsy() -> None:
    assert not scheduler().schedule()


def test_the_scheduler_needs_no_torch() -> None:
    code = "import sys, engine.scheduler; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
