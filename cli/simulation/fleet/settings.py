"""What a fleet simulation is made of. Built by `breakeven simulate --fleet`; read by the modules beside it."""

from __future__ import annotations

from dataclasses import dataclass

from cli.simulation.costs import CostModel, Line
from cli.simulation.made_up import TaskSpec


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Traffic, gateways and servers. Rates are nominal: `sample` scales them, and with them the number of servers."""

    method: str = "draft_model"
    draft_lengths: tuple[int, ...] = (4,)
    rate: float = 10_000.0
    """Requests per second at the day's peak."""
    sample: float = 50.0
    """One request in so many is simulated, on so many times fewer servers."""
    day_s: float = 180.0
    """Seconds into which the day is compressed; no constant of the decision is compressed with it."""
    gateways: int = 8
    slots: int = 64
    """Sequences that one server decodes at once."""
    kv_tokens: int = 48_000
    """Tokens that a server's cache holds."""
    draft_kv: float = 0.1
    """Share of the cache that the draft's own takes on servers that have one loaded."""
    busy: float = 0.95
    """Tokens at the peak, as a share of what all servers could decode plainly."""
    poll_s: float = 1.0
    """Between two looks of a gateway at load and statistics: so old they are at most."""
    collapse: tuple[float, float] = (0.75, 0.85)
    """Part of the day in which nothing that is drafted is accepted: all gateways learn of it at once, twice."""
    seed: int = 0

    @property
    def sampled_rate(self) -> float:
        """Simulated requests per second at the peak."""
        return self.rate / self.sample


MADE_UP_TASKS = [
    TaskSpec("structured", 0.90, tokens=150, prompt=500),
    TaskSpec("code", 0.82, tokens=260, prompt=700),
    TaskSpec("math", 0.74, tokens=220, prompt=250),
    TaskSpec("grounded_qa", 0.70, tokens=120, prompt=1500),
    TaskSpec("translation", 0.62, tokens=160, prompt=300),
    TaskSpec("summarization", 0.60, tokens=180, prompt=1800),
    TaskSpec("chat", 0.52, tokens=200, prompt=350),
    TaskSpec("creative", 0.42, tokens=320, prompt=200),
]
"""Where no traces are given: acceptance, spread and lengths after published measurements of small draft models."""
MADE_UP_COSTS = CostModel(
    batch=1, overhead=0.002, verify=Line(0.018, 1.2e-4, 2.0e-8), draft=Line(0.002, 1.0e-3, 2.0e-9)
)
"""Where no cost file is given: one row of a GPU that decodes 64 at once 1.4 times as slowly as one."""
