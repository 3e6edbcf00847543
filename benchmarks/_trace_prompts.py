"""Chooses the prompts of `benchmarks/traces`: the demo's, and some of each family of the classifier's, task by task.

Prints them as JSONL: `python -m benchmarks._trace_prompts > benchmarks/traces/prompts.jsonl`.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.demo.workload import load_prompts
from cli.training.data import Example, load_examples
from gateway.classify import Classifier

PER_TASK = 40
LONGEST = 6000
"""Characters of a prompt at most."""


def by_turns_of_families(examples: Sequence[Example], count: int, seed: int = 0) -> list[Example]:
    """Return `count` examples, one of each family in turn: no family outweighs another before it is used up."""
    shuffled = sorted(examples, key=lambda example: example.id)
    random.Random(seed).shuffle(shuffled)
    families: dict[str, list[Example]] = {}
    for example in shuffled:
        families.setdefault(example.family, []).append(example)
    longest = max(map(len, families.values()), default=0)
    turns = [rows[turn] for turn in range(longest) for rows in families.values() if turn < len(rows)]
    return turns[:count]


def chosen(folder: Path) -> Iterator[dict[str, object]]:
    """Yield the rows, the tasks in turn."""
    tasks = Classifier.load().taxonomy.names
    rows: dict[str, list[dict[str, object]]] = {task: [] for task in tasks}
    for prompt in load_prompts():
        extra = {"response_format": prompt.response_format} if prompt.response_format else {}
        rows[prompt.task].append({"id": prompt.id, "task": prompt.task, "messages": prompt.messages, **extra})
    usable = [
        example
        for example in load_examples(folder, tasks)
        if "messages" in example.body and "tools" not in example.body and len(json.dumps(example.body)) < LONGEST
    ]
    for task in tasks:
        some = by_turns_of_families([example for example in usable if example.task == task], PER_TASK - len(rows[task]))
        rows[task] += [{"id": example.id, "task": task, **example.body} for example in some]
    for turn in range(PER_TASK):
        for task in tasks:
            if turn < len(rows[task]):
                yield rows[task][turn]


if __name__ == "__main__":
    for row in chosen(Path("classifier_data")):
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
