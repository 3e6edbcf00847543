"""Whatever a file holds, reading it ends soon, in a policy or in PolicyError; findings keep their form."""

import random
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.errors import PolicyError
from gateway.policy import Facts, Policy, load_policy, match, parse_policy
from gateway.policy.expectations import parse_expectations

POLICIES = Path(__file__).parents[4] / "policies"
SEEDS = [file.read_text(encoding="utf-8") for file in sorted(POLICIES.glob("*.yaml"))]
FINDING = re.compile(r"[^\n]*?:\d+:\d+: (error|warning): [^\n]+")
WORDS = """version tasks classifier backends rules name when path arms draft_lengths break_even p99 probe holdout store
task app header temperature seed prompt_tokens time load share all any not min max hours days zone margin
budget window auto plain speculative observe code chat engine ngram-k4 ngram-* * 1 0 -1 5% 80ms 10m 1e999 .inf
.nan 0x10 010 1_000 null ~ true off 99999999999999999999999999 "" ' " [ ] { } : , - ? & &a *a *b << | > % @ `
! !!python/object !!int --- ... # \\ ${BREAKEVEN_X} ${HOME} ${BREAKEVEN_X:-${Y}} $$ http://h:1 http://[ :: <=
0.5 1..2 2..1 09:00-25:00 mon-xyz Mars/Base"""
CHARACTERS = ["\t", "\n", "\x00", "\x07", "\x85", "\u2028", "\ud800", "\ufeff", "\U0001f600", "é"]
TOKENS = WORDS.split() + CHARACTERS


def findings_of(read: Callable[[], Policy]) -> list[str]:
    """Return what reading notes; a policy that can be used can also be matched."""
    try:
        policy = read()
    except PolicyError as error:
        return error.diagnostics or ["none"]
    match(policy, Facts(task="code", headers={"x-team": "a"}, prompt_tokens=5))
    return list(policy.warnings)


def survives(text: str) -> None:
    """Read a text as policy and as expectations."""
    findings = findings_of(lambda: parse_policy(text, "fuzz.yaml", env={"BREAKEVEN_X": "http://h"}))
    assert all(FINDING.fullmatch(line) for line in findings), findings
    with pytest.raises(PolicyError):
        parse_expectations(text, "fuzz.yaml")


def mutated(draw: random.Random) -> str:
    """Return a shipped policy with a few random edits."""
    text = draw.choice(SEEDS)
    for _ in range(draw.choice([1, 1, 2, 3, 8])):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.choice([0, 0, 1, 3, 20, 200]))
        kind = draw.random()
        if kind < 0.5:
            text = text[:at] + draw.choice(["", " ", "\n", "\n  "]) + draw.choice(TOKENS) + text[end:]
        elif kind < 0.7:
            text = text[:at] + text[at:end] * draw.choice([0, 2, 3]) + text[end:]
        elif kind < 0.85:
            text = (
                text[:at]
                + chr(draw.choice([0, 9, 10, 13, 32, 0x7F, 0x85, 0xD800, 0xFFFE, draw.randrange(0x3000)]))
                + text[end:]
            )
        else:
            other = draw.choice(SEEDS)
            text = text[:at] + other[(begin := draw.randrange(len(other))) : begin + 300] + text[end:]
    return text


def generated(draw: random.Random) -> str:
    """Return a soup of the language's words."""
    lines = []
    for _ in range(draw.randrange(1, 30)):
        words = [draw.choice(TOKENS) for _ in range(draw.randrange(1, 6))]
        lines.append(
            " " * draw.choice([0, 0, 2, 4, 6]) + draw.choice(["", "- "]) + draw.choice([": ", " ", ", "]).join(words)
        )
    return draw.choice(["version: 1\n", ""]) + "\n".join(lines)


def fuzz(cases: int, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(cases):
        text = mutated(draw) if number % 3 else generated(draw)
        try:
            survives(text)
        except Exception as error:
            raise AssertionError(f"case {number} of seed {seed}: {text!r}") from error


def test_fuzz_some():
    fuzz(200, seed=20261130)


@pytest.mark.verify
def test_fuzz_many():
    fuzz(10_000, seed=7)


@pytest.mark.verify
def test_fuzz_bytes(tmp_path: Path):
    draw = random.Random(11)
    for _ in range(2_000):
        data = bytearray(draw.choice(SEEDS).encode())
        for _ in range(draw.choice([1, 4, 50])):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (tmp_path / "p.yaml").write_bytes(data)
        findings = findings_of(lambda: load_policy(tmp_path / "p.yaml", env={}))
        assert all(FINDING.fullmatch(line) for line in findings), findings


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb(9), "more than 200,000 values"),
        ("&a [*a]", "contains itself"),
        ("a: &a [[[[[[[[[[[[[x]]]]]]]]]]]]]\nb: [[[[[[[[[[[[[*a]]]]]]]]]]]]]", "24 levels"),
        ("[" * 100_000, "nesting depth"),
        ("{a: " * 10_000, "24 levels"),
        ("- " * 50_000 + "x", "24 levels"),
        ("x: " + "9" * 100_000, "unknown key"),
        ("version: " + "9" * 100_000, "whole number of at most 15 digits"),
        ("version: 1\nrules: [" + "{}, " * 6_000 + "]", "1 to 5,000 entries"),
        ("version: 1\n" + "#" * (2 * 1024 * 1024), "larger than 2048 KiB"),
        ("version: 1\n---\nversion: 1", "one document"),
        ("version: 1\nrules:\n" + "".join(f"- x{n}: 1\n" for n in range(5_000)), "more findings are not shown"),
        ("version: 1\nx: *nothing", "alias"),
        ("\ud800", "not valid YAML"),
        ("version: 1\n\x00", "not valid YAML"),
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("just text", "expected a mapping"),
        ("version: 2", "at least 1 and at most 1"),
        ("rules: []", "'version' is missing"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
@pytest.mark.timeout(150)
def test_hostile_files(text: str, message: str):
    tracemalloc.start()
    with pytest.raises(PolicyError, match=re.escape(message)) as caught:
        parse_policy(text, "hostile.yaml", env={})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(caught.value.diagnostics) <= 101
    assert sum(map(len, caught.value.diagnostics)) < 100_000
    assert peak < 200e6
