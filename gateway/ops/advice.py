"""What to do next, from a report's figures: a draft length to try, a task to switch off, a draft to distil. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gateway.db import ActivitySums, CellActivity
from gateway.ops.costs import Costed, costed_by_task
from gateway.ops.model import TaskFigures
from gateway.ops.study_model import NEEDED, Advice, Gain, TailRow

_ROUNDS = 200
"""Rounds before a task's acceptance says anything about another draft length."""
_BETTER = 1.03
"""A draft length is proposed where it promises 3 % more at least."""
_SHORT = 1.6
"""Tokens per round below which a better draft is worth more than a better length."""


def advise(
    tasks: Sequence[TaskFigures], gains: Sequence[Gain], tails: Sequence[TailRow], cells: Iterable[CellActivity]
) -> list[Advice]:
    """Return the advice, what loses first."""
    cells = list(cells)
    by_task = {gain.name: gain for gain in gains}
    lost = [task for task in tasks if _loses(task, by_task.get(task.task))]
    off = {task.task for task in lost}
    found = [_switch_off(task, by_task.get(task.task)) for task in lost]
    found += [each for task in tasks if task.task not in off and (each := _length(task, cells))]
    found += [each for task in tasks if (each := _distil(task))]
    found += [
        Advice(
            "tail", row.task, f"Set a p99 bound on {row.task} in the policy",
            f"p99 {row.metric.upper()} is {row.spec_ms:.1f} ms against {row.plain_ms:.1f} ms on the plain path, "
            "beyond what chance explains", "tails",
        )
        for row in tails if row.worse and row.metric == "tpot"
    ]  # fmt: skip
    thin = [gain.name for gain in gains if gain.time.gain is None and gain.requests >= 20 * NEEDED]
    found += [_more_holdout(thin)] if thin else []
    return found


def _loses(task: TaskFigures, gain: Gain | None) -> bool:
    """Whether speculation certainly loses: against the holdout, or against plain steps at the same load."""
    against = gain.time.high if gain is not None else None
    matched = task.gain_high
    return bool(task.requests_spec) and ((against is not None and against < 1) or (matched is not None and matched < 1))


def _switch_off(task: TaskFigures, gain: Gain | None) -> Advice:
    if gain is not None and gain.time.high is not None and gain.time.high < 1:
        because = (
            f"gain {gain.time.gain:.2f} [{gain.time.low:.2f}, {gain.time.high:.2f}] against the randomised holdout"
        )
        return Advice("switch_off", task.task, f"Switch speculation off for {task.task}", because, "sums")
    because = (
        f"gain {task.gain:.2f} [{task.gain_low:.2f}, {task.gain_high:.2f}] against plain steps at the same load, over "
        f"{task.requests_spec} speculative requests"
    )
    return Advice(
        "switch_off", task.task, f"Switch speculation off for {task.task}, or leave it to the probes", because
    )


def _length(task: TaskFigures, cells: Sequence[CellActivity]) -> Advice | None:
    """Return the draft length that one round at the longest length says would have done best.

    A round that accepts j of k tokens would have accepted min(j, k') of k'. Costs of a length in between are taken to
    grow evenly from none at 0 to those measured at k.
    """
    mine = [cell for cell in cells if cell.key.task == task.task and cell.key.k > 0 and cell.sums.rounds]
    rounds: dict[tuple[str, str, int], ActivitySums] = defaultdict(ActivitySums)
    for cell in mine:
        rounds[cell.key.backend, cell.key.method, cell.key.k].add(cell.sums)
    if not rounds:
        return None
    place = max(rounds, key=lambda key: rounds[key].rounds)
    sums, k = rounds[place], place[2]
    alike = [
        c for c in cells if c.key.k == 0 or (c.key.backend, c.key.method, c.key.k, c.key.task) == (*place, task.task)
    ]
    costs = costed_by_task(alike).get(task.task, Costed())
    if sums.rounds < _ROUNDS or not costs.expected_rounds_us:
        return None
    extra = (costs.draft_us + costs.verify_us) / costs.expected_rounds_us - 1
    promised = {length: _mean(sums, length) / (1 + extra * length / k) for length in range(1, k + 1)}
    best = max(promised, key=lambda length: promised[length])
    if promised[best] < _BETTER * max(1.0, promised[k]):
        return None
    because = (
        f"its {sums.rounds} rounds at k = {k} emit {_mean(sums, k):.2f} tokens and would have emitted "
        f"{_mean(sums, best):.2f} at k = {best}: {promised[best]:.2f}x instead of {promised[k]:.2f}x a plain step, "
        "if costs grow evenly with k"
    )
    return Advice("try_k", task.task, f"Try k = {best} for {task.task} ({place[1]} at {place[0]})", because)


def _mean(sums: ActivitySums, length: int) -> float:
    """Return the tokens that the rounds would have emitted at that draft length, the bonus token included."""
    accepted = sum(min(j, length) * count for j, count in enumerate(sums.accepted_histogram))
    return 1 + accepted / max(1, sum(sums.accepted_histogram))


def _distil(task: TaskFigures) -> Advice | None:
    if task.rounds < _ROUNDS or task.a is None or task.a >= _SHORT or task.break_even is None:
        return None
    because = (
        f"{task.rounds} rounds emit {task.a:.2f} tokens against a break-even of {task.break_even:.2f}; "
        f"{task.z or 0:.0%} of them accept nothing"
    )
    return Advice("distil", task.task, f"Distil a draft on {task.task}, or give it another drafter", because)


def _more_holdout(tasks: Sequence[str]) -> Advice:
    text = f"Raise `holdout` in the rules of {', '.join(tasks)}, or report over a longer window"
    return Advice("holdout", "", text, "too few requests were kept plain to say what speculation gained", "sums")
