"""`breakeven classify`: its lines, its errors, its exit codes; the same verdicts as the library call."""

import json

from click.testing import CliRunner

from cli.classify import classify
from gateway.classify import Classifier

ROWS = [
    {"id": "a", "turns": ["Write a haiku about fog."]},
    {"id": 7, "messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object"}},
    {"turns": ["first", "Translate to German: good night"], "tools": []},
]


def run(*args, **options):
    return CliRunner().invoke(classify, list(args), **options)


def lines_of(rows):
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def test_prints_one_line_per_request_with_exactly_the_fields(tmp_path):
    file = tmp_path / "requests.jsonl"
    file.write_text(lines_of(ROWS))
    result = run(str(file))
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [list(row) for row in found] == [["id", "task", "confidence", "source", "signals", "micros"]] * 3
    assert [row["id"] for row in found] == ["a", 7, None]
    assert [row["task"] for row in found] == ["creative", "structured", "translation"]
    assert [row["source"] for row in found] == ["text", "signal", "text"]


def test_agrees_with_the_call_that_serves_requests(tmp_path):
    file = tmp_path / "requests.jsonl"
    file.write_text(lines_of(ROWS))
    found = json.loads(run(str(file)).stdout.splitlines()[0])
    verdict = Classifier.load().classify({"messages": [{"role": "user", "content": "Write a haiku about fog."}]})
    assert (found["task"], found["confidence"], found["signals"]) == (verdict.task, verdict.confidence, verdict.signals)


def test_reads_standard_input():
    result = run("-", input=lines_of(ROWS[:1]))
    assert json.loads(result.stdout)["id"] == "a"


def test_a_bad_line_is_named_and_the_rest_goes_on():
    result = run("-", input=lines_of(ROWS[:1]) + 'nope\n\n{"id": 3}\n{"id": 4, "turns": "x"}\n' + lines_of(ROWS[1:2]))
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2
    complaints = result.stderr.splitlines()
    assert complaints[0].startswith("<stdin>:2: error: JSON is malformed")
    assert complaints[1] == "<stdin>:4: error: expected `turns` (list of strings) or `messages` (list of objects)"
    assert "<stdin>:5: error: Expected `array | null`, got `str` - at `$.turns`" in complaints[2]


def test_not_utf8_is_a_bad_line():
    result = run("-", input=b'{"id": 1, "turns": ["\xff"]}\n')
    assert result.exit_code == 1
    assert "<stdin>:1: error:" in result.stderr


def test_a_file_that_is_no_artefact(tmp_path):
    wrong = tmp_path / "wrong.npz"
    wrong.write_text("x")
    result = run("-", "--artefact", str(wrong), input="")
    assert result.exit_code == 1
    assert "not a classifier artefact" in result.stderr
