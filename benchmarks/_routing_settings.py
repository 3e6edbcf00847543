"""The traffic that the decision's figures are taken on: made-up with a known truth, recorded, and real text.

None of it was used to fit a single constant one by one; `routing_figures` runs all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks._routing_text import text_traces
from cli.simulation.costs import CostModel, Line, read_costs
from cli.simulation.made_up import TaskSpec, make_traces
from cli.simulation.replay import Table, build_table
from cli.simulation.traces import read_traces

TRACES = Path(__file__).resolve().parent / "traces"
NAMES = ("code", "chat", "math", "creative")
THREE = (2, 4, 8)
MANY = (1, 2, 3, 4, 6, 8, 12, 16)
CHEAP, DEAR = 0.02, -1.0
"""What drafting costs: a share of verification; below 0, an expensive draft model (0.004 + 0.001·(k + 1) seconds)."""


@dataclass(frozen=True)
class Traffic:
    """One kind of traffic; `batches` are the loads it is simulated at."""

    specs: tuple[TaskSpec, ...] = ()
    """How it is made up; empty: `recorded` says where it comes from."""
    share: float | None = None
    lengths: tuple[int, ...] = THREE
    batches: tuple[int, ...] = (1, 32, 128)
    recorded: str = ""
    """A method of the shipped traces, or `text`."""


def tasks(*acceptances: float, **common: float | bool) -> tuple[TaskSpec, ...]:
    """Return one task for each mean acceptance."""
    names = NAMES if len(acceptances) <= 4 else tuple(f"task{i}" for i in range(len(acceptances)))
    return tuple(TaskSpec(name, p, **common) for name, p in zip(names, acceptances, strict=False))  # type: ignore[arg-type]


def two_kinds(good: float, bad: float, **common: float | bool) -> tuple[TaskSpec, ...]:
    """Return four tasks of which half of the requests draft well and half badly."""
    return tuple(spec for p in (good, bad) for spec in tasks(p, p - 0.05, p + 0.03, p - 0.02, **common))


COPYING = (
    TaskSpec("code", 0.2, 1.6, copied=0.0),
    TaskSpec("chat", 0.1, 1.6, copied=-1.5),
    TaskSpec("math", 0.08, 1.6, copied=-2.0),
    TaskSpec("creative", 0.15, 1.6, copied=-0.5),
)
GAPS = (
    TaskSpec("code", 0.75, 0.6, undrafted=0.4),
    TaskSpec("chat", 0.4, 0.8, undrafted=0.6),
    TaskSpec("math", 0.3, 0.6, undrafted=0.7),
    TaskSpec("creative", 0.6, 0.8, undrafted=0.5),
)
TWENTY = tuple(TaskSpec(f"task{i:02}", 0.1 + 0.04 * i, 0.8, tokens=150.0, tail=1.3) for i in range(20))

TRAFFIC: dict[str, Traffic] = {
    "mixed": Traffic(tasks(0.8, 0.45, 0.65, 0.25)),
    "strong draft": Traffic(tasks(0.57, 0.52, 0.6, 0.55, decay=0.95, joined=False)),
    "strong draft, k 5 alone": Traffic(tasks(0.72, 0.6, 0.68, 0.5, decay=0.97, joined=False), lengths=(5,)),
    "n-gram": Traffic(COPYING, CHEAP),
    "n-gram, k 1 to 16": Traffic(COPYING, CHEAP, MANY),
    "n-gram, k 5 alone": Traffic(COPYING, CHEAP, (5,)),
    "undrafted steps": Traffic(GAPS, CHEAP),
    "off is best": Traffic(tasks(0.12, 0.2, 0.08, 0.15, spread=0.4)),
    "on is best": Traffic(tasks(0.85, 0.8, 0.9, 0.78, spread=0.4)),
    "eight tasks": Traffic(tasks(0.85, 0.3, 0.5, 0.65, 0.2, 0.75, 0.4, 0.1, spread=0.6, wander=0.4)),
    "twenty tasks, heavy tails": Traffic(TWENTY),
    "one task": Traffic(tasks(0.5, spread=0.7)),
    "requests differ": Traffic(tasks(0.7, 0.5, 0.35, 0.25, spread=1.6, wander=0.6)),
    "two kinds of request": Traffic(two_kinds(0.85, 0.1, spread=0.3)),
    "two kinds, k 1 to 16": Traffic(two_kinds(0.9, 0.2, spread=0.3), CHEAP, MANY),
    "repetition loops": Traffic(tasks(0.4, 0.3, 0.35, 0.2, spread=0.6, wander=0.6, loops=0.03), 0.03),
    "short outputs": Traffic(tasks(0.7, 0.5, 0.35, 0.25, spread=0.6, wander=0.4, tokens=30.0, prompt=100.0)),
    "one to ten tokens": Traffic(tasks(0.8, 0.6, 0.4, 0.2, spread=0.5, tokens=4.0, tail=0.6, least=1)),
    "long contexts": Traffic(tasks(0.7, 0.5, 0.35, 0.25, spread=0.6, wander=0.4, tokens=400.0, prompt=3000.0)),
    "long outputs, heavy tails": Traffic(tasks(0.75, 0.55, 0.4, 0.2, tokens=250.0, tail=1.4)),
    "expensive draft": Traffic(tasks(0.85, 0.7, 0.6, 0.4, spread=0.6), DEAR),
    "small gains": Traffic(tasks(0.30, 0.26, 0.33, 0.22, spread=0.4), lengths=(1, 2, 4)),
    "i.i.d. rounds": Traffic(tasks(0.6, 0.45, 0.3, 0.2, spread=0.0, wander=0.0)),
    "recorded n-gram": Traffic(recorded="ngram", share=CHEAP),
    "recorded suffix": Traffic(recorded="suffix", share=0.03),
    "recorded n-gram, measured costs": Traffic(recorded="ngram", batches=(1, 8, 32)),
    "recorded n-gram, k 5 alone": Traffic(recorded="ngram", share=CHEAP, lengths=(5,)),
    "text": Traffic(recorded="text", share=CHEAP),
    "text, k 1 to 16": Traffic(recorded="text", share=CHEAP, lengths=MANY),
    "text, k 5 alone": Traffic(recorded="text", share=CHEAP, lengths=(5,)),
}


def costs(batch: int, share: float | None = None) -> CostModel:
    """A GPU-like time model: a step of 10 ms, and verification that costs the more the larger the batch."""
    verify = Line(0.010, batch * 4e-5, batch * 1e-8)
    draft = Line(0.0004, 0.0003, 0.0)
    if share is not None:
        draft = Line(*(share * x for x in (verify.base, verify.per_k, verify.per_kv)))
        draft = Line(0.004, 0.001, 0.0) if share < 0 else draft
    return CostModel(batch, 0.0005, verify, draft)


@lru_cache(maxsize=2)
def table(name: str, batch: int, seed: int = 71, per_task: int = 300, lengths: tuple[int, ...] = ()) -> Table:
    """Return the traffic's requests under the time model at a batch size, at its own draft lengths or others."""
    traffic = TRAFFIC[name]
    lengths = lengths or traffic.lengths
    if traffic.recorded == "text":
        return build_table(text_traces(150, seed), costs(batch, traffic.share), lengths)
    if traffic.recorded:
        traces = read_traces(TRACES / "smollm2.jsonl", traffic.recorded, 1024)
        measured = read_costs(TRACES / "costs.yaml", traffic.recorded, batch)
        return build_table(traces, measured if traffic.share is None else costs(batch, traffic.share), lengths)
    return build_table(make_traces(list(traffic.specs), per_task, seed), costs(batch, traffic.share), lengths)
