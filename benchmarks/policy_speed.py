"""How fast policies are read and matched: parse and validate 1,000 rules, look a request up among 200.

Run with `python -m benchmarks.policy_speed [--json]`. One thread; `cpu` figures are processor time of that thread,
which other processes on the machine disturb less than the clock on the wall.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from statistics import median

from gateway.policy import Facts, Policy, match, parse_policy
from gateway.types import DEFAULT_TASKS

HEAD = """version: 1
backends:
  engine: {url: 'http://127.0.0.1:8100', arms: [plain, ngram-k2, ngram-k4, ngram-k8]}
rules:
"""


def rules_text(count: int, seed: int = 0, *, named: bool = True) -> str:
    """Write a policy of `count` different rules as a large platform would: by application, task, size and header.

    Without `named` they name applications by patterns: no index helps, and every rule is tested in turn.
    """
    draw = random.Random(seed)
    rules = []
    for number in range(count):
        conditions = [f"app: app-{number}"] if named else [f"app: 'app-{number}-*'"]
        if named and draw.random() < 0.5:
            conditions.append(f"task: {draw.choice(DEFAULT_TASKS)}")
        if named and draw.random() < 0.3:
            conditions.append(f"prompt_tokens: {draw.choice(['<= 512', '512..4096', '>= 8192'])!r}")
        if draw.random() < 0.3:
            conditions.append(f"header: {{x-team: [team-{number}, 'group-{number}-*']}}")
        if draw.random() < 0.2:
            conditions.append("any: [{stream: true}, {temperature: 0}]")
        rules.append(
            f"  - name: rule {number}\n    owner: team-{number % 17}\n    when: {{{', '.join(conditions)}}}\n"
            f"    arms: [plain, ngram-*]\n    draft_lengths: [2, {draw.choice([4, 8])}]\n"
            "    break_even: {margin: 1%, confidence: 95%, min_requests: 20, half_life: 10m}\n"
            "    p99: {metric: tpot, window: 10m, budget: 80ms, max_ratio_to_plain: 1.1}\n"
            "    probe: 5%\n    holdout: 1%\n"
        )
    return HEAD + "".join(rules)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def time_parse(count: int, repeat: int, clock: Callable[[], float]) -> list[float]:
    """Return seconds of each parse and validation of `count` rules."""
    text = rules_text(count)
    seconds = []
    for _ in range(repeat):
        began = clock()
        parse_policy(text, "bench.yaml", env={})
        seconds.append(clock() - began)
    return seconds


def time_match(policy: Policy, repeat: int, seed: int = 1) -> list[float]:
    """Return seconds of single look-ups; half of the requests fall through to the last rule, the slowest case."""
    draw = random.Random(seed)
    facts = [
        Facts(
            task=draw.choice(DEFAULT_TASKS),
            app=f"app-{draw.randrange(400)}",
            headers={"x-team": f"team-{draw.randrange(400)}"},
            prompt_tokens=draw.randrange(10_000),
            stream=draw.random() < 0.5,
        )
        for _ in range(1000)
    ]
    seconds = []
    for number in range(repeat):
        one = facts[number % 1000]
        began = time.thread_time()
        match(policy, one)
        seconds.append(time.thread_time() - began)
    return seconds


def measure() -> dict[str, float]:
    """Return the figures."""
    figures = {}
    for label, clock in (("wall", time.perf_counter), ("cpu", time.thread_time)):
        parsed = time_parse(1000, 9, clock)
        figures[f"parse_1000_rules_{label}_ms_median"] = round(median(parsed) * 1e3, 1)
        figures[f"parse_1000_rules_{label}_ms_max"] = round(max(parsed) * 1e3, 1)
    for label, named in (("match_200_rules", True), ("match_200_unindexed_rules", False)):
        matched = time_match(parse_policy(rules_text(200, named=named), "bench.yaml", env={}), 50_000)
        figures[f"{label}_cpu_us_median"] = round(median(matched) * 1e6, 2)
        figures[f"{label}_cpu_us_p99"] = round(percentile(matched, 0.99) * 1e6, 2)
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    figures = measure()
    print(
        json.dumps(figures) if options.json else "\n".join(f"{name:40} {value:>10}" for name, value in figures.items())
    )


if __name__ == "__main__":
    main()
