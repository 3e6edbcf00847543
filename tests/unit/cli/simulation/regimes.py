"""Made-up traffic with a known truth, in regimes that the constants of the decision were not fitted to one by one."""

from __future__ import annotations

from cli.simulation.costs import CostModel, Line
from cli.simulation.made_up import TaskSpec, make_traces
from cli.simulation.replay import Table, build_table

NAMES = ("code", "chat", "math", "creative")


def costs(batch: int, share: float | None = None) -> CostModel:
    """A GPU-like time model: a step of 10 ms, and verification that costs the more the larger the batch."""
    verify = Line(0.010, batch * 4e-5, batch * 1e-8)
    draft = (
        Line(0.0004, 0.0003, 0.0) if share is None else Line(*(share * x for x in (0.010, batch * 4e-5, batch * 1e-8)))
    )
    return CostModel(batch, 0.0005, verify, draft)


def tasks(*acceptances: float, **common: object) -> list[TaskSpec]:
    names = NAMES if len(acceptances) <= 4 else tuple(f"task{i}" for i in range(len(acceptances)))
    return [TaskSpec(name, p, **common) for name, p in zip(names, acceptances, strict=False)]  # type: ignore[arg-type]


REGIMES: dict[str, tuple[list[TaskSpec], float | None]] = {
    "mixed": (tasks(0.8, 0.45, 0.65, 0.25), None),
    "strong draft": (tasks(0.57, 0.52, 0.6, 0.55, decay=0.95, joined=False), None),
    "n-gram": (
        [
            TaskSpec("code", 0.2, 1.6, copied=0.0),
            TaskSpec("chat", 0.1, 1.6, copied=-1.5),
            TaskSpec("math", 0.08, 1.6, copied=-2.0),
            TaskSpec("creative", 0.15, 1.6, copied=-0.5),
        ],
        0.02,
    ),
    "n-gram, undrafted steps": (
        [
            TaskSpec("code", 0.75, 0.6, undrafted=0.4),
            TaskSpec("chat", 0.4, 0.8, undrafted=0.6),
            TaskSpec("math", 0.3, 0.6, undrafted=0.7),
            TaskSpec("creative", 0.6, 0.8, undrafted=0.5),
        ],
        0.02,
    ),
    "off is best": (tasks(0.12, 0.2, 0.08, 0.15, spread=0.4), None),
    "on is best": (tasks(0.85, 0.8, 0.9, 0.78, spread=0.4), None),
    "eight tasks": (tasks(0.85, 0.3, 0.5, 0.65, 0.2, 0.75, 0.4, 0.1, spread=0.6, wander=0.4), None),
    "requests differ": (tasks(0.7, 0.5, 0.35, 0.25, spread=1.6, wander=0.6), None),
    "repetition loops": (tasks(0.4, 0.3, 0.35, 0.2, spread=0.6, wander=0.6, loops=0.03), 0.03),
    "short outputs": (tasks(0.7, 0.5, 0.35, 0.25, spread=0.6, wander=0.4, tokens=30.0, prompt=100.0), None),
    "long contexts": (tasks(0.7, 0.5, 0.35, 0.25, spread=0.6, wander=0.4, tokens=400.0, prompt=3000.0), None),
}


def table(name: str, batch: int, seed: int, *, per_task: int = 300, lengths: tuple[int, ...] = (2, 4, 8)) -> Table:
    """Return a regime's traces under the time model at a batch size."""
    specs, share = REGIMES[name]
    return build_table(make_traces(specs, per_task, seed), costs(batch, share), lengths)
