"""Latency of `Classifier.classify` by prompt length, one thread: `python -m benchmarks.classify_latency [--json]`.

Prompts are drawn from the training documents in several scripts and forms, up to their length; p50 and p99 are over
single calls, after a warm-up; load time is the median of fresh loads. `conversation` is of the same prompts, each as
the last turn of a conversation with a system prompt.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from pathlib import Path
from typing import Any

from gateway.classify import Classifier
from gateway.classify.artefact import DEFAULT

ROOT = Path(__file__).parent.parent
LENGTHS = (40, 200, 1_000, 4_000, 16_000, 32_000)
OPENERS = (
    "Summarize the following text.\n\n",
    "Translate to German: ",
    "Answer only from the context.\n\nContext: ",
    "请用三句话概括下面的文章：\n",
    "इसका सारांश लिखिए:\n",
    "Write a Python function that parses this:\n\n",
    "",
)


def bodies(per_length: int, seed: int = 0) -> list[tuple[int, dict[str, Any]]]:
    """Return (length, chat body) pairs in shuffled order."""
    rng = random.Random(seed)
    texts = [json.loads(line)["text"] for line in (ROOT / "classifier_data/documents.jsonl").open(encoding="utf-8")]
    made = []
    for length in LENGTHS:
        for _ in range(per_length):
            text = rng.choice(OPENERS)
            while len(text) < length:
                text += rng.choice(texts) + "\n"
            made.append((length, {"messages": [{"role": "user", "content": text[:length]}]}))
    rng.shuffle(made)
    return made


def conversations(work: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return each prompt as the last turn of a conversation, whose other texts are other prompts' beginnings."""
    texts = [body["messages"][0]["content"] for _, body in work]
    made = []
    for i, text in enumerate(texts):
        system, turn, answer = (texts[(i + step) % len(texts)][:800] for step in (1, 2, 3))
        messages = [("system", system), ("user", turn), ("assistant", answer), ("user", text)]
        made.append({"messages": [{"role": role, "content": content} for role, content in messages]})
    return made


def _micros(classifier: Classifier, body: dict[str, Any]) -> float:
    began = time.perf_counter_ns()
    classifier.classify(body)
    return (time.perf_counter_ns() - began) / 1000


def measure(per_length: int = 200, rounds: int = 5) -> dict[str, Any]:
    """Return percentiles in microseconds, by length and over all lengths, and the load time in milliseconds."""
    loads = []
    for _ in range(7):
        began = time.perf_counter()
        classifier = Classifier.load()
        loads.append((time.perf_counter() - began) * 1000)
    work = bodies(per_length)
    for _, body in work[:200]:
        classifier.classify(body)
    times: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for _ in range(rounds):
        for length, body in work:
            times[length].append(_micros(classifier, body))
    talks = conversations(work)
    every = [value for values in times.values() for value in values]
    return {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "artefact_bytes": DEFAULT.stat().st_size,
        "load_ms": round(statistics.median(loads), 1),
        "micros": {str(length): _percentiles(values) for length, values in times.items()},
        "all": _percentiles(every),
        "conversation": _percentiles([_micros(classifier, body) for _ in range(rounds) for body in talks]),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {"n": len(values), "p50": round(cuts[49], 1), "p99": round(cuts[98], 1), "min": round(min(values), 1)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="Print one line of JSON.")
    options = parser.parse_args()
    print(json.dumps(measure(), indent=None if options.json else 1))


if __name__ == "__main__":
    main()
