"""The decision before the embedded engine: the demo's mix routed, always plain and always speculative, in turns.

Run: python -m benchmarks live_routing [--only 1,4,8]: one case per concurrency, under four minutes each. A gateway with
its engine is started in a folder of its own and learns from routed traffic first (`learning`, reported apart). Then
every group of prompts runs three times, once per way, the order changing; a group in which a request was a probe or in
the holdout is reported apart. Figures: total time over the better fixed way (limit 1.01), medians of paired ratios with
95 % bootstrap intervals, and p99 of time per token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks._pairs import OtherLoad, interval
from benchmarks.gateway_overhead import free_port, process, wait_for
from cli.demo.client import Client, Sample
from cli.demo.workload import Prompt, interleave, load_prompts

CASES = (1, 4, 8)
ALWAYS_ON = "engine/ngram-k4"
"""The draft length nearest 4 of the default policy's first method: what the holdout keeps to as well."""
WAYS = ("routed", "always_off", "always_on")
Ways = dict[str, dict[str, str]]
"""Headers by name of the way."""
TOKENS = 48
BUDGET_S = 200.0
"""Of one case, start included; groups that no longer fit are left out and counted."""
LEARNING_S = 45.0
LIMIT = 1.01


@dataclass(slots=True)
class Group:
    """The same prompts, sent at once, on each way: seconds until all had answered, and the answers."""

    seconds: dict[str, float]
    samples: dict[str, list[Sample]]

    @property
    def explored(self) -> bool:
        """Whether a routed request was a probe or in the holdout."""
        return any(word in s.reason for s in self.samples["routed"] for word in ("probe (", "holdout ("))


async def case(
    url: str,
    concurrency: int,
    always_on: str = ALWAYS_ON,
    *,
    learning_s: float = LEARNING_S,
    budget_s: float = BUDGET_S,
) -> dict[str, Any]:
    """Measure one concurrency against a gateway that has just started."""
    prompts, ways = interleave(load_prompts(), 6), ways_of(always_on)
    groups: list[Group] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        client = Client(session, url, None)
        model = await client.model()
        deadline = time.monotonic() + budget_s
        learning = await _learn(client, model, prompts, concurrency, learning_s)
        with OtherLoad() as other:
            at = 0
            while time.monotonic() < deadline and at < 3 * len(prompts):
                chosen = [prompts[(at + i) % len(prompts)] for i in range(concurrency)]
                groups.append(await _group(client, model, chosen, len(groups), ways))
                at += concurrency
    return figures(groups, concurrency) | {"learning": learning, "busy_cores_in_all": round(other.cores, 2)}


async def _learn(
    client: Client, model: str, prompts: Sequence[Prompt], concurrency: int, seconds: float
) -> dict[str, Any]:
    """Send routed traffic until statistics have something to say."""
    began, sent = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        chosen = [prompts[(sent + i) % len(prompts)] for i in range(concurrency)]
        await _send(client, model, chosen, {})
        sent += concurrency
    await asyncio.sleep(2.0)
    return {"requests": sent, "seconds": round(time.monotonic() - began, 1)}


async def _group(client: Client, model: str, prompts: Sequence[Prompt], number: int, ways: Ways) -> Group:
    names = list(ways)
    turn = number % len(names)
    group = Group({}, {})
    for way in names[turn:] + names[:turn]:
        began = time.perf_counter()
        group.samples[way] = await _send(client, model, prompts, ways[way])
        group.seconds[way] = time.perf_counter() - began
    return group


async def _send(client: Client, model: str, prompts: Sequence[Prompt], wish: dict[str, str]) -> list[Sample]:
    sent = (client.send(p.body(model, TOKENS), prompt=p.id, task=p.task, wish=wish) for p in prompts)
    return list(await asyncio.gather(*sent))


def ways_of(always_on: str) -> Ways:
    """Return the three ways: routed, always plain, and always the given speculative arm."""
    return {
        "routed": {},
        "always_off": {"x-breakeven-path": "plain"},
        "always_on": {"x-breakeven-path": "speculative", "x-breakeven-arm": always_on},
    }


def figures(groups: Sequence[Group], concurrency: int) -> dict[str, Any]:
    """Return totals, paired ratios and tails; groups with a probe or the holdout count for their own line only."""
    calm = [group for group in groups if not group.explored]
    explored = [group for group in groups if group.explored]
    totals = {way: sum(group.seconds[way] for group in calm) for way in WAYS}
    better = min(("always_off", "always_on"), key=lambda way: totals[way])
    per_request = concurrency * len(calm)
    apart = sum(group.seconds["routed"] for group in explored) / max(
        1e-9, sum(group.seconds[better] for group in explored)
    )
    return {
        "concurrency": concurrency,
        "groups": len(calm),
        "requests_each_way": per_request,
        "total_s": {way: round(total, 3) for way, total in totals.items()},
        "better_fixed": better,
        "routed_over_better": round(totals["routed"] / totals[better], 4),
        "limit": LIMIT,
        "routed_over_always_off": _ratio(calm, "always_off"),
        "routed_over_always_on": _ratio(calm, "always_on"),
        "groups_with_probe_or_holdout": len(explored),
        "routed_over_better_there": round(apart, 4) if explored else None,
        "time_per_token_ms": {way: _tails(calm, way) for way in WAYS},
        "arms": _arms(groups),
    }


def _ratio(groups: Sequence[Group], way: str) -> dict[str, float]:
    ratios = [group.seconds["routed"] / group.seconds[way] for group in groups]
    low, high = interval(ratios)
    return {"median": round(statistics.median(ratios), 4), "low": round(low, 4), "high": round(high, 4)}


def _tails(groups: Sequence[Group], way: str) -> dict[str, Any]:
    """Return median, p99 and n of time per token; below 299 requests the p99 is only the largest but few."""
    paces = sorted(1e3 * s.tpot_s for group in groups for s in group.samples[way] if s.tpot_s)
    if not paces:
        return {"n": 0}
    last = paces[min(len(paces) - 1, int(0.99 * len(paces)))]
    return {"n": len(paces), "p50": round(statistics.median(paces), 2), "p99": round(last, 2)}


def _arms(groups: Sequence[Group]) -> dict[str, dict[str, int]]:
    """Return how often each arm was taken per task."""
    found: dict[str, dict[str, int]] = {}
    for group in groups:
        for sample in group.samples["routed"]:
            by_arm = found.setdefault(sample.task, {})
            by_arm[sample.arm] = by_arm.get(sample.arm, 0) + 1
    return found


def _wait(url: str, server: subprocess.Popen[str]) -> None:
    """Wait until the gateway and its engine are ready: on a busy machine that takes a while."""
    for patience in reversed(range(4)):
        try:
            return wait_for(url, server)
        except RuntimeError:
            if not patience or server.poll() is not None:
                raise
    return None


def measure(concurrency: int) -> dict[str, Any]:
    """Start a gateway with its engine, measure, and end both."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="live-routing-") as folder:
        command = (sys.executable, "-m", "cli.main", "serve", "--port", str(port), "--data-dir", folder)
        with process(*command) as server:
            _wait(f"{url}/readyz", server)
            return asyncio.run(case(url, concurrency))


def main() -> None:
    """Print the figures: as one line with `--json`, else indented."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line")
    parser.add_argument("--only", default=",".join(map(str, CASES)), help="concurrencies, by commas")
    args = parser.parse_args()
    names = args.only.split(",")
    if not all(name.isdecimal() and int(name) in CASES for name in names):
        parser.error(f"--only: expected some of {', '.join(map(str, CASES))}, got {args.only}")
    result = {f"concurrency_{name}": measure(int(name)) for name in names}
    sys.stdout.write(json.dumps(result, indent=None if args.json else 1) + "\n")


if __name__ == "__main__":
    main()
