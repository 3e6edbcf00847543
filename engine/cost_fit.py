"""Measured cost cells → the straight lines of the simulator's cost file (`--costs-out`). Called by the core.

In seconds, at batch B, draft length k and kv tokens of context, all coefficients ≥ 0:
    step or verify = target.fixed + B·(k + 1)·target.per_token + B·kv·target.per_kv_token
    draft          = fixed + (k + 1)·per_draft_token + B·kv·per_kv_token
The target's errors count relative to the time itself, the drafters' in plain steps, as α does: a slow large batch does
not drown batch 1. Cells that lie far off (something else took the CPU) are weighed down by Huber's rule.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml

from engine.messages import CostCell, CostTable

Floats = npt.NDArray[np.float64]
HEADER = """\
# Step costs in seconds for `breakeven simulate --costs`: lines fitted by non-negative least squares.
# What a round costs beside its passes is part of target.fixed, so overhead is 0.
"""

REWEIGHTINGS = 30
NEAR = 0.02
"""Errors up to this weigh in full, larger ones no more than in proportion (Huber's rule)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Line:
    """Coefficients of one kind of phase, seconds."""

    fixed: float
    per_token: float
    """Per token (target: times the batch; drafter: per draft token)."""
    per_kv_token: float
    error: float
    """Median of what the line misses, relative to the time (target) or in plain steps (drafter)."""

    def at(self, tokens: int, kv: int) -> float:
        """Return the seconds for so many tokens and so much context."""
        return self.fixed + self.per_token * tokens + self.per_kv_token * kv


@dataclass(frozen=True, slots=True)
class CostFit:
    """The target's line and each drafter's."""

    target: Line
    drafters: dict[str, Line]
    cells: int


def fit_costs(table: CostTable, contexts: Mapping[int, int]) -> CostFit | None:
    """Return the lines nearest to the cells, None where there are none.

    Args:
        table: measured cells; `context` is a band's lower edge.
        contexts: lower edge → tokens of context at which its cells were measured (missing: the edge itself).
    """
    if not table.cells:
        return None
    passes: dict[tuple[int, int, int], float] = {}
    for cell in table.cells:
        passes[cell.batch, cell.context, 0] = cell.plain_s
        passes[cell.batch, cell.context, cell.k] = cell.verify_s
    rows = [(1.0, batch * (k + 1), batch * contexts.get(edge, edge)) for batch, edge, k in passes]
    seconds = np.array(list(passes.values()))
    target = _line(rows, seconds, seconds)
    drafters = {}
    for method in sorted({cell.method for cell in table.cells}):
        cells = [cell for cell in table.cells if cell.method == method]
        drafters[method] = _drafter(cells, contexts, target)
    return CostFit(target, drafters, len(table.cells))


def _drafter(cells: list[CostCell], contexts: Mapping[int, int], target: Line) -> Line:
    kv = [cell.batch * contexts.get(cell.context, cell.context) for cell in cells]
    rows = [(1.0, cell.k + 1, size) for cell, size in zip(cells, kv, strict=True)]
    plain = [target.at(cell.batch, size) for cell, size in zip(cells, kv, strict=True)]
    return _line(rows, np.array([cell.draft_s for cell in cells]), np.array(plain))


def _line(rows: Sequence[tuple[float, float, float]], seconds: Floats, unit: Floats) -> Line:
    """Fit seconds to rows of the design matrix, errors counting in `unit` seconds each."""
    design = np.array(rows, dtype=np.float64) / unit[:, None]
    wanted = seconds / unit
    found = nonnegative_least_squares(design, wanted)
    for _ in range(REWEIGHTINGS):
        missed = np.abs(design @ found - wanted)
        weights = np.sqrt(NEAR / np.maximum(missed, NEAR))
        found = nonnegative_least_squares(design * weights[:, None], wanted * weights)
    fixed, per_token, per_kv_token = found.tolist()
    return Line(fixed, per_token, per_kv_token, error=float(np.median(np.abs(design @ found - wanted))))


def nonnegative_least_squares(design: Floats, wanted: Floats) -> Floats:
    """Return x ≥ 0 with the least |design·x − wanted|; of equally good ones that with fewest coefficients above 0.

    The best x is the unconstrained solution on its own support, so trying every support is exact; three columns have
    eight.
    """
    width = design.shape[1]
    scale = np.sqrt((design**2).sum(axis=0))
    scale[scale == 0] = 1.0
    scaled = design / scale
    best: Floats = np.zeros(width)
    least = float((wanted**2).sum())
    for size in range(1, width + 1):
        for support in itertools.combinations(range(width), size):
            columns = list(support)
            found = np.linalg.lstsq(scaled[:, columns], wanted, rcond=None)[0]
            if found.min() < 0:
                continue
            missed = float(((scaled[:, columns] @ found - wanted) ** 2).sum())
            if missed < least - 1e-12 * float((wanted**2).sum()):
                least = missed
                best = np.zeros(width)
                best[columns] = found
    result: Floats = best / scale
    return result


def render(fit: CostFit) -> str:
    """Return the cost file's text."""
    errors = ", ".join(f"{name} {line.error:.3f}" for name, line in [("target", fit.target), *fit.drafters.items()])
    target = {
        "fixed": _short(fit.target.fixed),
        "per_token": _short(fit.target.per_token),
        "per_kv_token": _short(fit.target.per_kv_token),
    }
    drafters = {
        method: {
            "fixed": _short(line.fixed),
            "per_draft_token": _short(line.per_token),
            "per_kv_token": _short(line.per_kv_token),
        }
        for method, line in fit.drafters.items()
    }
    body = yaml.safe_dump({"overhead": 0.0, "target": target, "drafters": drafters}, sort_keys=False)
    return f"{HEADER}# {fit.cells} cells; median error, relative to the time or in plain steps: {errors}.\n{body}"


def write_costs(path: Path, table: CostTable, contexts: Mapping[int, int]) -> bool:
    """Put the cost file in its place, whole or not at all; False where nothing is measured or the disk refuses."""
    fit = fit_costs(table, contexts)
    if fit is None:
        log.warning("%s: no step costs are measured yet, nothing is written", path)
        return False
    scratch = None
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            scratch = Path(file.name)
            file.write(render(fit))
        scratch.chmod(0o644)
        scratch.replace(path)
    except OSError as error:
        log.warning("%s: step costs cannot be written: %s", path, error.strerror)
        if scratch is not None:
            scratch.unlink(missing_ok=True)
        return False
    return True


def _short(seconds: float) -> float:
    """Six significant digits: more would claim a precision that no timing has."""
    return float(f"{seconds:.6g}")
