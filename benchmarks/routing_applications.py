"""What telling applications apart below the task is worth: two tasks whose applications draft differently, or alike.

Run: python -m benchmarks routing_applications. Made-up traffic; each task has four applications. Times are relative to
plain alone, without (`task`) and with (`application`) the trace's `application`, beside the oracles by task and by
application that know the best draft length of the whole sequence. Where applications are alike nothing may be lost.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import numpy as np

from benchmarks._routing_settings import costs
from cli.simulation import baselines
from cli.simulation.made_up import TaskSpec, make_traces
from cli.simulation.replay import Table, build_table
from cli.simulation.router import Router
from cli.simulation.run import draw_sequence
from cli.simulation.traces import Trace
from gateway.policy.schema import Rule
from gateway.routing import Tuning

KINDS = {"apart": (0.85, 0.65, 0.3, 0.1), "a little apart": (0.6, 0.5, 0.45, 0.35), "alike": (0.5,) * 4}
BATCHES = (1, 32, 128)
REQUESTS = 600
"""Per task, of which there are two."""


def traces(acceptances: tuple[float, ...], per_application: int = 150) -> list[Trace]:
    """Return requests of two tasks, each with one application for each acceptance."""
    made: list[Trace] = []
    for task, shift in (("code", 0.0), ("chat", -0.05)):
        for i, p in enumerate(acceptances):
            requests = make_traces([TaskSpec(task, p + shift, 0.5)], per_application, 10 * i + len(task) + int(100 * p))
            made += [msgspec.structs.replace(one, application=f"app{i}") for one in requests]
    return made


def measure(kind: str, batch: int, seeds: int) -> dict[str, float]:
    """Return mean relative times."""
    known = build_table(traces(KINDS[kind]), costs(batch), (2, 4, 8))
    hidden = build_table([msgspec.structs.replace(t, application="") for t in known.traces], known.costs, (2, 4, 8))
    by_application = [msgspec.structs.replace(t, task=f"{t.task} {t.application}") for t in known.traces]
    apart = Table(by_application, known.costs, known.lengths, known.seconds, known.steps, known.tokens)
    rows = []
    for seed in range(seeds):
        sequence = draw_sequence(known, REQUESTS, np.random.default_rng([seed, 0]))
        row = {
            "task oracle": baselines.task_oracle(known, sequence),
            "application oracle": baselines.task_oracle(apart, sequence),
        }
        for name, table in (("task", hidden), ("application", known)):
            for in_flight in (False, True):
                router = Router(table, "made-up", Rule("made-up", holdout=0.0), Tuning(), in_flight=in_flight)
                run = router.run(sequence.tolist(), np.random.default_rng([seed, 2]))
                relative = sum(run.seconds) / float(known.plain[sequence].sum())
                row[f"{'in flight' if in_flight else 'routed'} by {name}"] = relative
        rows.append(row)
    return {key: round(float(np.mean([row[key] for row in rows])), 4) for key in rows[0]}


def main(seeds: int = 2) -> None:
    """Print the table as JSON: as one line with `--json`, else indented."""
    rows: dict[str, Any] = {f"{kind}, batch {b}": measure(kind, b, seeds) for kind in KINDS for b in BATCHES}
    sys.stdout.write(json.dumps(rows, indent=None if "--json" in sys.argv else 1) + "\n")


if __name__ == "__main__":
    main()
