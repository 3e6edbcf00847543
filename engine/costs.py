"""Measured step costs by batch, context band, method and draft length. Filled by the core, read by the server.

Medians, never means: one preempted step must not move a cell. A cell is reported once plain and verify steps of the
same batch and context have been seen.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from dataclasses import dataclass

from engine.messages import CostCell, CostTable

CONTEXT_EDGES = (0, 512, 2048, 8192, 32768)
"""Lower edges of the context bands."""
WINDOW = 64
"""Latest samples kept per cell."""


@dataclass(slots=True, frozen=True)
class StepTiming:
    """Wall time of one step, seconds: the draft phase, and everything after it."""

    draft_s: float
    verify_s: float


def context_edge(tokens: int) -> int:
    """Return the lower edge of the context band of `tokens`."""
    return max(edge for edge in CONTEXT_EDGES if edge <= tokens)


Key = tuple[int, int, str, int]
"""batch, context edge, method, k."""


class CostModel:
    """Samples by kind of step. `observe` belongs to the step thread, `table` to anyone."""

    def __init__(self) -> None:
        self._samples: dict[Key, deque[StepTiming]] = {}
        self._lock = threading.Lock()
        self.profiled = False
        """Whether the first profile is complete."""

    def observe(self, *, batch: int, context: int, k: int, method: str, timing: StepTiming) -> None:
        """Take one step of `batch` sequences, all with `k` draft tokens (0: plain)."""
        key = (batch, context_edge(context), method if k else "plain", k)
        with self._lock:
            self._samples.setdefault(key, deque(maxlen=WINDOW)).append(timing)

    def table(self) -> CostTable:
        """Return the cells whose plain counterpart is known."""
        with self._lock:
            samples = {key: list(values) for key, values in self._samples.items()}
        cells = []
        for (batch, context, method, k), values in sorted(samples.items()):
            plain = samples.get((batch, context, "plain", 0))
            if k == 0 or plain is None:
                continue
            cells.append(
                CostCell(
                    batch=batch,
                    context=context,
                    k=k,
                    method=method,
                    draft_s=statistics.median(one.draft_s for one in values),
                    verify_s=statistics.median(one.verify_s for one in values),
                    plain_s=statistics.median(one.draft_s + one.verify_s for one in plain),
                    n=min(len(values), len(plain)),
                )
            )
        return CostTable(cells)
