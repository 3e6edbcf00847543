"""Passes of static shape give what the lean runner gives; on a CPU they run without graphs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.attention import RowInput
from engine.config import EngineConfig
from engine.graph_runner import GraphRunner, StaticPass
from engine.kv_cache import BLOCK, KVPool
from engine.lean_runner import LeanRunner
from engine.model_runner import kv_shape_of, make_runner
from tests.fixtures.core import generate, make_core, noisy_copy, prompts, random_model, request, run


@pytest.mark.parametrize("shape", ["llama", "mistral", "qwen3"])
def test_static_passes_are_the_lean_runners(shape: str) -> None:
    """Ragged rows, a window, slots of nobody between them, prompts beside them, roll-back, tapped layers."""
    rng = random.Random(2)
    loaded = random_model(shape)
    runners = [GraphRunner(loaded, kv_shape_of(loaded)), LeanRunner(loaded, kv_shape_of(loaded))]
    pools = [KVPool(runner.kv_shape, 16 * BLOCK, together=5) for runner in runners]
    rows = [[pool.allocate(BLOCK) for _ in range(5)] for pool in pools]
    for pool, own in zip(pools, rows, strict=True):
        pool.release(own.pop(1))
    for runner in runners:
        runner.taps = (1, 2)
    for step in range(8):
        new = [[rng.randrange(3, 259) for _ in range(rng.choice((1, 2, 6)))] for _ in range(4)]
        if step == 3:
            new[3] = [rng.randrange(3, 259) for _ in range(40)]  # a prompt's chunk
        asked = [rng.randrange(1 + len(tokens)) for tokens in new]
        outs = []
        for runner, own in zip(runners, rows, strict=True):
            inputs = [RowInput(row, *what) for row, what in zip(own, zip(new, asked, strict=True), strict=True) if row]
            outs.append((runner.forward(inputs), runner.features))
            for row in own:
                assert row is not None
                row.truncate(row.length - step % 2)
        torch.testing.assert_close(outs[0][0], outs[1][0], atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(outs[0][1], outs[1][1], atol=2e-4, rtol=1e-4)


def test_inputs_are_not_refilled_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the copy of the last pass may still be pending: wait, fill, copy, mark."""
    happened: list[str] = []

    class Copied:
        def synchronize(self) -> None:
            happened.append("wait")

        def record(self) -> None:
            happened.append("mark")

    init, fill, compute = StaticPass.__init__, StaticPass._fill, StaticPass._compute

    def marked(self: StaticPass, *args: Any) -> None:
        init(self, *args)
        self._copied = Copied()  # type: ignore[assignment]

    def filled(self: StaticPass, rows: Any) -> tuple[int, int]:
        happened.append("fill")
        return fill(self, rows)

    def computed(self: StaticPass) -> None:
        assert torch.equal(self._inputs, self._host), "what was filled in is what is computed with"
        happened.append("compute")
        compute(self)

    monkeypatch.setattr(StaticPass, "__init__", marked)
    monkeypatch.setattr(StaticPass, "_fill", filled)
    monkeypatch.setattr(StaticPass, "_compute", computed)
    runner = make_runner(random_model("llama"), static=True)
    row = KVPool(runner.kv_shape, 16 * BLOCK, together=2).allocate(BLOCK)
    assert row is not None
    for token in (5, 6):
        runner.forward([RowInput(row, [token], 1)])
    assert happened == ["wait", "fill", "mark", "compute"] * 2


def test_shapes_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int, int]] = []
    init = StaticPass.__init__

    def counted(self: StaticPass, runner: LeanRunner, slab: object, shape: tuple[int, int, int]) -> None:
        made.append(shape)
        init(self, runner, slab, shape)  # type: ignore[arg-type]

    monkeypatch.setattr(StaticPass, "__init__", counted)
    loaded = random_model("llama")
    core = make_core(loaded, noisy_copy(loaded), max_batch=8, kv_tokens=8192, static_shapes=True)
    arms = [("plain", 0), ("ngram", 5), ("draft_model", 3), ("suffix", 8)]
    texts = prompts(16)
    asked = [
        request(f"{at}", text, method=method, k=k)
        for at, (text, (method, k)) in enumerate(zip(texts, itertools.cycle(arms), strict=False))
    ]
    answers = run(core, asked)
    assert [answers[one.request_id].tokens for one in asked] == [generate(loaded, text, 24) for text in texts]
    assert 0 < len({*made}) <= 24


def test_static_shapes_are_for_gpus_and_lean_models() -> None:
    assert EngineConfig().together("cpu") == 0
    assert EngineConfig(max_batch=7).together("cuda") == 7
    assert isinstance(make_runner(random_model("llama"), static=True), GraphRunner)
    assert not isinstance(make_runner(random_model("gemma2"), static=True), LeanRunner)


def test_a_row_that_outgrows_its_place_moves() -> None:
    """It gets a slab of its own from the part kept free; alone, it may have everything."""
    runner = make_runner(random_model("llama"), static=True)
    pool = KVPool(runner.kv_shape, 32 * BLOCK, together=3)
    rows = [pool.allocate(10) for _ in range(3)]
    first = rows[0]
    assert first is not None
    assert {row.slab for row in rows if row} == {first.slab}
    assert first.capacity == 6 * BLOCK
    assert pool.reserve(first, 7 * BLOCK)
    assert not first.slab.fixed
    assert not pool.reserve(first, 20 * BLOCK), "the others' places stay where they are"
    for row in rows[1:]:
        assert row is not None
        pool.release(row)
    assert pool.reserve(first, 32 * BLOCK)
    assert pool.held == pool.used == 32 * BLOCK


def test_a_round_reads_from_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain and n-gram rows, greedy: whatever would wait for a GPU is called once a step, to take the tokens out."""
    reads: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def call(self: torch.Tensor, *args: Any) -> Any:
            reads.append(name)
            return original(self, *args)

        return call

    core = make_core(random_model("llama"), max_batch=4, static_shapes=True)
    for at, method in enumerate(("plain", "ngram", "suffix")):
        core.add(request(f"{at}", [5, 6, 7, 8] * 5, method=method, k=4 * (method != "plain"), ignore_eos=True))
    core.step()
    for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__float__", "__int__", "__bool__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, counted(name))
    steps = 0
    while core.has_work():
        core.step()
        steps += 1
        assert reads == ["tolist"]
        reads.clear()
    assert steps > 5
