"""A model, an engine over it, prompts, and how long answers to them take. Used by `engine_speed`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import Adaptive, Speculation
from engine.models import LoadedModel
from engine.models.load import load_models
from engine.profiler import mixed_points
from engine.sequence import GenerateRequest, SamplingParams

CODE = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
        return self.balance
"""
ARTICLE = (
    "The harbour of Lindau was rebuilt in 1856 after the great flood. The lighthouse is 33 metres tall and the lion is "
    "six metres high. Both were designed by Johann von Halbig. Today 250,000 visitors come each year, most of them in "
    "July and August. The ferry to Bregenz takes 22 minutes and leaves every hour between nine and eighteen o'clock."
)
COPYING = (
    f"Rename `amount` to `value` in this code and print the whole code again:\n{CODE}",
    f"Repeat this code, adding a docstring to the class:\n{CODE}",
    f"Repeat this article word for word:\n{ARTICLE}",
    f'Turn this text into JSON with the keys "lighthouse", "ferry" and "visitors", quoting the sentences:\n{ARTICLE}',
)
CREATIVE = (
    "Write a story about a dragon who is afraid of fire.",
    "Write a poem about the sea at night.",
    "Invent a new festival and describe how people celebrate it.",
    "Describe a city on the moon in the year 2300.",
)
EIGHT = [CREATIVE[at % 4] for at in range(8)]
COPYING_EIGHT = [COPYING[at % 4] for at in range(8)]
TOKENS = 24
SHORT = 12
LONG = 48
"""Tokens of each answer: alone, in batches of 8, and where in-flight control first has to find out."""
_names = iter(range(10**9))
PLAIN = Speculation("plain", 0)


class Bench:
    """A model, an engine over it, and requests to it."""

    def __init__(self, model: LoadedModel, core: EngineCore, config: EngineConfig, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.model = model
        self.core = core
        self.config = config

    def ids(self, text: str) -> list[int]:
        """Return the prompt of one user message."""
        tokenizer: Any = self.model.tokenizer
        ids: list[int] = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return ids

    def add(self, text: str, arm: Speculation, count: int, *, place: int = 0, core: EngineCore | None = None) -> str:
        """Queue one greedy request and return its id. Only its prompt's KV is remembered, by text and place."""
        name = f"{next(_names)}"
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        (core or self.core).add(GenerateRequest(name, self.ids(text), params, arm, cache_key=f"{place} {text}"))
        return name

    def seconds(
        self, texts: Sequence[str], arm: Speculation, *, count: int = TOKENS, core: EngineCore | None = None
    ) -> float:
        """Decode all texts together and return the seconds after the last prompt was taken in."""
        core = core or self.core
        for place, text in enumerate(texts):
            self.add(text, arm, count, place=place, core=core)
        begun: set[str] = set()
        while len(begun) < len(texts):
            begun |= {output.request_id for output in core.step()}
        started = self.clock()
        while core.has_work():
            core.step()
        return self.clock() - started

    def half(self, ours: Sequence[str], others: Sequence[str], arm: Speculation, other_arm: Speculation) -> float:
        """Seconds until `ours` are decoded while `others`, which are longer, run beside them all the time."""
        core = self.core
        waiting = {self.add(text, other_arm, 20 * SHORT, place=place) for place, text in enumerate(others)}
        rest = set(waiting)
        while rest:
            rest -= {output.request_id for output in core.step()}
        left = {self.add(text, arm, SHORT, place=8 + place) for place, text in enumerate(ours)}
        waited = set(left)
        while waited:
            outputs = core.step()
            waited -= {output.request_id for output in outputs}
            left -= {output.request_id for output in outputs if output.finish_reason}  # where its drafts were quick
        started = self.clock()
        while left:
            left -= {output.request_id for output in core.step() if output.finish_reason}
        seconds = self.clock() - started
        for name in waiting:
            core.abort(name)
        while core.has_work():
            core.step()
        return seconds

    @torch.inference_mode()
    def generate(self, text: str, count: int = TOKENS, **options: int) -> float:
        """Seconds of transformers' own decoding after the prompt: `count` tokens against one."""
        model: Any = self.model.model
        ids = torch.tensor([self.ids(text)])
        settings = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "attention_mask": torch.ones_like(ids)}
        marks = []
        for length in (1, count):
            started = self.clock()
            model.generate(ids, max_new_tokens=length, **settings, **(options if length > 1 else {}))
            marks.append(self.clock() - started)
        return marks[1] - marks[0]


def floor_seconds(model: LoadedModel, clock: Callable[[], float], repeats: int = 9) -> float:
    """Seconds to read all weights once, in memory laid out as the engine's own, by looking for their largest."""
    parameters = {id(weight): weight.detach() for weight in model.model.parameters()}
    weights = torch.cat([weight.view(torch.int16).flatten() for weight in parameters.values()])
    times = []
    for _ in range(repeats):
        started = clock()
        weights.max()
        times.append(clock() - started)
    return min(times)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""`cpu` counts the process's own seconds on the CPU: with one thread, wall time without others' turns."""


def make_bench(dtype: str, clock: str) -> Bench:
    """Load the built-in model and an engine of eight places over it. The dtype `auto` is what the engine would take."""
    config = EngineConfig(dtype=dtype, kv_tokens=16_384, max_batch=8)  # type: ignore[arg-type]  # checked there
    torch.set_num_threads(config.num_threads)
    model, _ = load_models(config)
    return Bench(model, EngineCore(model, config), config, CLOCKS[clock])


def measure_costs(bench: Bench) -> None:
    """Let the engine measure what the cases need, as it does in its first idle minutes."""
    if not bench.core._costs.profiled:
        bench.core.measure((1, 8), (1, 2, 5, 8), 96)
        bench.core._profiler.measure(mixed_points(8, 96, 8))
        bench.core._costs.profiled = True


def adaptive(bench: Bench, method: str, k: int) -> Speculation:
    """In-flight control with the break-even lengths that this engine has measured, and a prior in the middle."""
    measure_costs(bench)
    cells = [cell for cell in bench.core.costs().cells if cell.method == method and cell.batch == 1]
    known = [(cell.k, (cell.draft_s + cell.verify_s) / cell.plain_s) for cell in cells]
    return Speculation(method, k, Adaptive(break_even=known or [(k, 1.2)], prior=[0.5]))
