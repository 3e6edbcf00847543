"""The watched file: changes are seen once, at rest only, with the tasks file it names; and the state they move."""

import os
from pathlib import Path

import pytest

from gateway.errors import PolicyError
from gateway.policy import parse_policy
from gateway.policy.lifecycle import Held
from gateway.policy.source import PolicyFile


def write(path: Path, text: str) -> None:
    """Write, with a time of its own even where the clock of the file system is coarse."""
    path.write_text(text, encoding="utf-8")
    write.ticks += 1
    os.utime(path, ns=(write.ticks * 10**9, write.ticks * 10**9))


write.ticks = 0


@pytest.fixture
def file(tmp_path: Path) -> PolicyFile:
    write(tmp_path / "p.yaml", "version: 1\n")
    found = PolicyFile(tmp_path / "p.yaml", env={})
    found.load()
    return found


def test_a_change_is_reported_once_and_only_at_rest(file: PolicyFile):
    assert file.changed() is None
    write(file.path, "version: 1\nrules: [{na")
    assert file.changed() is None
    write(file.path, "version: 1\nrules: [{name: whole}]\n")
    assert file.changed() is None
    policy = file.changed()
    assert policy is not None
    assert policy.rules[0].name == "whole"
    assert file.changed() is None


def test_a_broken_file_is_reported_once(file: PolicyFile):
    write(file.path, "version: 9")
    assert file.changed() is None
    with pytest.raises(PolicyError, match="at most 1"):
        file.changed()
    assert file.changed() is None


def test_a_file_replaced_by_another_is_seen(file: PolicyFile, tmp_path: Path):
    write(tmp_path / "new.yaml", "version: 1\n")
    os.utime(tmp_path / "new.yaml", ns=(file._seen[0][0], file._seen[0][0]))
    (tmp_path / "new.yaml").replace(file.path)
    assert file.changed() is None
    assert file.changed() is not None


def test_the_tasks_file_is_watched_too(file: PolicyFile, tmp_path: Path):
    write(tmp_path / "tasks.yaml", "tasks: [a, b]\n")
    write(file.path, "version: 1\ntasks: tasks.yaml\n")
    assert file.changed() is None
    assert file.changed() is not None
    assert file.changed() is None
    write(tmp_path / "tasks.yaml", "tasks: [a, b, c]\n")
    assert file.changed() is None
    policy = file.changed()
    assert policy is not None
    assert policy.task_names == ("a", "b", "c")


def test_what_is_refused_never_replaces_what_is_in_force():
    one, two = (parse_policy(f"version: 1\nrules: [{{name: {name}}}]", "p", env={}) for name in ("one", "two"))
    held = Held(one, since=1.0).refuse("p.yaml", ["p.yaml:1:1: error: x"], 2.0)
    assert held.policy is one
    assert held.describe()["rejected"] == {"source": "p.yaml", "findings": ["p.yaml:1:1: error: x"], "at": 2.0}
    assert held.forgive("other").rejected is not None
    assert held.forgive("p.yaml").rejected is None
    held = held.accept(two, "api", 7, 3.0)
    assert (held.policy, held.origin, held.activation, held.since, held.rejected) == (two, "api", 7, 3.0, None)
    assert (held.reloads, held.rejections) == (1, 1)
    again = held.accept(two, "file", 0, 9.0)
    assert (again.since, again.activation, again.origin, again.reloads) == (3.0, 7, "api", 1)
