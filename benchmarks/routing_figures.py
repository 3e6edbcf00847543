"""What the decision takes over what it could: every kind of traffic and load, with every figure that it misses.

Run with `python -m benchmarks.routing_figures [--requests 1200] [--seeds 20] [--only TRAFFIC,…] [--workers N]`. Rows
are kept in `results/routing_REQUESTS.json` one by one and taken over from there while the code behind them is the same,
so that a long run may be stopped and gone on with. `--show` prints what is kept, measuring nothing, and says which rows
other code than the present has made.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._routing_bayes import greedy_seconds
from benchmarks._routing_limits import WIDE, missed
from benchmarks._routing_settings import TRAFFIC, table
from cli.simulation.run import Plan, one_seed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LONG = 6000
"""Requests from which the figures for many requests hold."""
BAYES_REQUESTS = 300
"""Requests of each table on which greedy Bayes is worked out: it takes milliseconds a token."""


def rows_wanted(only: list[str]) -> list[tuple[str, int]]:
    """Return the traffic and loads to measure."""
    return [(name, batch) for name in TRAFFIC if not only or name in only for batch in TRAFFIC[name].batches]


def measure(name: str, batch: int, requests: int, seeds: int) -> dict[str, Any]:
    """Return one row: means over seeds, and what greedy Bayes closes where there is something to close."""
    made = table(name, batch)
    per_task = max(1, requests // len({trace.task for trace in made.traces}))
    found = [one_seed(Plan(made, "simulated", per_task, 1), seed) for seed in range(seeds)]
    times = [one["relative_time"] for one in found]
    row: dict[str, Any] = {
        key: round(float(np.mean([one[key] for one in times])), 5) for key in times[0] if key != "always_on"
    }
    row["always_on"] = {
        k: round(float(np.mean([one["always_on"][k] for one in times])), 5) for k in times[0]["always_on"]
    }
    row["worst_regret"] = round(max(one["regret"] for one in found), 5)
    row["worst_in_flight"] = round(max(one["routed_in_flight"] / one["task_oracle"] for one in times) - 1, 5)
    row["probe_share"] = round(float(np.mean([one["probe_share"] for one in found])), 5)
    row["switches"] = float(np.mean([one["switches"] for one in found]))
    if TRAFFIC[name].specs and row["task_oracle"] > (1 + WIDE) * row["request_oracle"]:
        row["greedy_bayes"] = round(row["task_oracle"] * _bayes(name, batch), 5)
    return row | {"requests": per_task * len({trace.task for trace in made.traces}), "seeds": seeds}


def _bayes(name: str, batch: int) -> float:
    """Return greedy Bayes' time over the task oracle's, both on the same sample of requests."""
    made = table(name, batch)
    rng = np.random.default_rng([71, 5])
    names = np.array([trace.task for trace in made.traces])
    sample = rng.choice(len(names), min(BAYES_REQUESTS, len(names)), replace=False)
    best = sum(made.seconds[sample[names[sample] == task]].sum(axis=0).min() for task in np.unique(names[sample]))
    return float(greedy_seconds(made, TRAFFIC[name].specs, sample.tolist()).sum() / best)


@lru_cache(maxsize=1)
def code_behind() -> str:
    """Return a digest of the code that the figures hang on."""
    digest = hashlib.sha256()
    for pattern in ("gateway/routing/*.py", "cli/simulation/*.py", "engine/control.py", "benchmarks/_routing_*.py"):
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def run(requests: int, seeds: int, only: list[str], workers: int) -> dict[str, Any]:
    """Measure what is not kept yet, keep each row as it comes, and return all rows kept."""
    path = RESULTS / f"routing_{requests}.json"
    kept = read(path)
    code = code_behind()
    todo = [
        (name, batch)
        for name, batch in rows_wanted(only)
        if (row := kept.get(f"{name}, batch {batch}", {})).get("code") != code or row.get("seeds", 0) < seeds
    ]
    for key, row in _measured(todo, requests, seeds, workers):
        kept = keep(path, key, row | {"code": code})
        print(line(key, row, requests), file=sys.stderr, flush=True)
    return kept


def _measured(
    todo: list[tuple[str, int]], requests: int, seeds: int, workers: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows as they come."""
    if workers == 1:
        for name, batch in todo:
            yield f"{name}, batch {batch}", measure(name, batch, requests, seeds)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        coming = {pool.submit(measure, name, batch, requests, seeds): f"{name}, batch {batch}" for name, batch in todo}
        for done in as_completed(coming):
            yield coming[done], done.result()


def keep(path: Path, key: str, row: dict[str, Any]) -> dict[str, Any]:
    """Put a row into the file, whoever else writes to it, and return all its rows."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept: dict[str, Any] = json.loads(file.read() or "{}")
        kept[key] = row
        order = {f"{name}, batch {batch}": i for i, (name, batch) in enumerate(rows_wanted([]))}
        kept = dict(sorted(kept.items(), key=lambda item: order.get(item[0], len(order))))
        file.truncate(0)
        file.write(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return kept


def read(path: Path) -> dict[str, Any]:
    """Return the rows kept in a file, none where there is none."""
    kept: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return kept


def line(key: str, row: dict[str, Any], requests: int) -> str:
    """Return one row of the table."""
    misses = missed(row, long=requests >= LONG)
    figures = (
        row["routed"] / row["best_static"],
        row["routed"] / row["task_oracle"],
        row["routed"] / row["naive_ewma"],
        row["routed_in_flight"] / row["task_oracle"],
        row["routed_in_flight"] / row["request_oracle"],
    )
    cells = " ".join(f"{value:8.4f}" for value in figures)
    older = "" if row.get("code", code_behind()) == code_behind() else "older code: "
    return f"{key:42} {row['seeds']:5} {cells}  {older}{'; '.join(misses) or 'pass'}"


def show(kept: dict[str, Any], requests: int) -> str:
    """Return the table of all rows."""
    head = f"{f'{requests:,} requests':42} seeds  /static  /oracle   /naive  fl/orac fl/reque"
    return "\n".join([head, *(line(key, row, requests) for key, row in kept.items())])


def main() -> int:
    """Measure and print the table, or with `--json` its sum as one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the sum of the kept rows as one JSON object")
    parser.add_argument("--requests", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="kinds of traffic, divided by semicolons")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", action="store_true", help="measure nothing")
    args = parser.parse_args()
    only = [name.strip() for name in args.only.split(";") if name.strip()]
    if unknown := [name for name in only if name not in TRAFFIC]:
        parser.error(f"--only: no traffic {unknown[0]!r}; expected of {'; '.join(TRAFFIC)}")
    for option in ("requests", "seeds", "workers"):
        if getattr(args, option) < 1:
            parser.error(f"--{option}: expected 1 or more, got {getattr(args, option)}")
    kept = read(RESULTS / f"routing_{args.requests}.json")
    if not args.show:
        kept = run(args.requests, args.seeds, only, args.workers)
    print(show(kept, args.requests), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        misses = {key: found for key, row in kept.items() if (found := missed(row, long=args.requests >= LONG))}
        print(json.dumps({"rows": len(kept), "rows with misses": len(misses), "misses": misses}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
