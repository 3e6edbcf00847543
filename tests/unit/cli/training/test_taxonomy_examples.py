"""The examples that a taxonomy gives of its tasks are trained on like labelled rows."""

from __future__ import annotations

from pathlib import Path

from cli.training.data import taxonomy_examples
from gateway.classify.taxonomy import load_taxonomy, parse_taxonomy

SUPPORT = Path(__file__).parents[4] / "policies" / "tasks" / "support.yaml"


def test_examples_of_the_shipped_tasks_file_become_rows():
    rows = taxonomy_examples(load_taxonomy(SUPPORT))
    assert len(rows) >= 3
    assert all(row.body["messages"][0]["content"] for row in rows)
    assert len({row.id for row in rows}) == len(rows)


def test_each_task_is_one_family_so_that_it_is_held_out_as_a_whole():
    tasks = "tasks:\n  a: {description: x, examples: [one, two]}\n  b: y\n"
    rows = taxonomy_examples(parse_taxonomy(tasks, "t"))
    assert [(row.task, row.family, row.body["messages"][0]["content"]) for row in rows] == [
        ("a", "examples of a", "one"),
        ("a", "examples of a", "two"),
    ]
