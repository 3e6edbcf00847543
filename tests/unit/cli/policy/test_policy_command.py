"""`breakeven policy` on files: check, explain, test, diff, schema."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main

POLICIES = Path(__file__).parents[4] / "policies"
BODY = {"model": "any-model", "messages": [{"role": "user", "content": "Write a SQL query for our top customers"}]}


def run(*arguments: object, stdin: object = None) -> Result:
    text = stdin if isinstance(stdin, str) or stdin is None else json.dumps(stdin)
    return CliRunner().invoke(main, ["policy", *map(str, arguments)], input=text)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    file = tmp_path / "broken.yaml"
    file.write_text("version: 1\nrules:\n  - {prob: 5%}\n", encoding="utf-8")
    return file


def test_check_says_what_is_wrong_and_where(broken: Path, tmp_path: Path):
    result = run("check", POLICIES / "default.yaml", broken)
    assert result.exit_code == 1
    good, bad = result.output.splitlines()
    assert good.startswith(f"{POLICIES / 'default.yaml'}: ok, 1 rules, 1 backends, hash ")
    assert bad == f"{broken}:3:6: error: unknown key 'prob' in rule (did you mean 'probe'?)"
    missing = run("check", tmp_path / "none.yaml")
    assert missing.exit_code == 1
    assert "none.yaml:1:1: error: cannot read the file: No such file or directory" in missing.output


def test_check_without_files_takes_the_one_that_serve_would(broken: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("BREAKEVEN_POLICY", raising=False)
    assert run("check").exit_code == 0
    monkeypatch.setenv("BREAKEVEN_POLICY", str(broken))
    assert "broken.yaml:3:6: error" in run("check").output


def test_check_without_files_takes_the_policy_in_force_where_a_database_is_named(broken: Path, tmp_path: Path):
    data = tmp_path / "data"
    fresh = run("check", "--data-dir", data)
    assert (fresh.exit_code, "default.yaml: ok" in fresh.output) == (0, True), fresh.output
    kept = tmp_path / "kept.yaml"
    kept.write_text("version: 1\nrules: [{name: only, path: plain}]\n", encoding="utf-8")
    assert run("apply", "--data-dir", data, kept).exit_code == 0
    for order in (("check", "--data-dir", data), ("--data-dir", data, "check")):
        assert "kept.yaml: ok, 1 rules" in run(*order).output
    assert "broken.yaml:3:6: error" in run("check", "--data-dir", data, broken).output
    explained = run("--data-dir", data, "explain", "--json", "-", stdin=BODY)
    assert json.loads(explained.output)["rule"] == "only"


def test_warnings_fail_with_strict_only(tmp_path: Path):
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nrules: [{path: plain}, {name: dead}]\n", encoding="utf-8")
    assert run("check", file).exit_code == 0
    assert run("check", "--strict", file).exit_code == 1
    (found,) = json.loads(run("check", "--json", file).output)["findings"]
    assert "rule 'dead' is never reached" in found


def test_explain_needs_no_server_and_takes_any_model():
    result = run("explain", "--json", "--policy", POLICIES / "default.yaml", "-", stdin=BODY)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["task"] == "code"
    assert found["rule"] == "default"
    assert (found["state"], found["arm"], found["path"]) == ("no_data", "engine/plain", "plain")
    assert "engine/ngram-k4" in found["arms"]
    assert found["assumed"]
    text = run("explain", "--policy", POLICIES / "default.yaml", "-", stdin=BODY).output
    labels = [line.split()[0] for line in text.splitlines() if line[0] != " "]
    order = [
        "request",
        "signals",
        "task",
        "policy",
        "rule",
        "arms",
        "vetoes",
        "numbers",
        "state",
        "arm",
        "reason",
        "stored",
        "assumed",
    ]
    assert labels == order


def test_explain_takes_what_a_body_does_not_say():
    options = ("--app", "acme-1", "--load", 3, "--prompt-tokens", 77, "--at", "2026-07-03T09:30", "--share", 4.9)
    found = json.loads(
        run("explain", "--json", "--task", "math", "-H", "X-Team=a=b", *options, "-", stdin={"prompt": "1+1="}).output
    )
    facts = found["facts"]
    assert (facts["app"], facts["load"], facts["prompt_tokens"], facts["at"]) == ("acme-1", 3, 77, 1783071000.0)
    assert facts["headers"] == {"x-team": "a=b"}
    assert facts["endpoint"] == "completions"
    assert (found["task"], found["source"]) == ("math", "declared")


@pytest.mark.parametrize(
    ("stdin", "options", "message"),
    [
        ("{", (), "not valid JSON"),
        ("[]", (), "must be a JSON object"),
        ("{}", (), "missing required field: messages"),
        ({"messages": []}, (), "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, (), "messages[0].content"),
        (BODY | {"temperature": "hot"}, (), "temperature"),
        (BODY, ("--task", "poetry"), "unknown task 'poetry'; expected one of structured, code"),
        (BODY, ("--at", "noon"), "expected a time such as"),
        (BODY, ("-H", "x-team"), "expected NAME=VALUE"),
        (BODY, ("--snapshot", "/nonexistent.json"), "not a saved snapshot"),
        (BODY, ("--save-snapshot", "/tmp/none.json"), "--save-snapshot needs --url"),
        (BODY, ("--policy", "/nonexistent.yaml"), "/nonexistent.yaml:1:1: error: cannot read the file"),
        (BODY, ("--url", "ftp://x"), "expected http://"),
        (BODY, ("--url", "http://127.0.0.1:1"), "no answer from http://127.0.0.1:1"),
    ],
)
def test_explain_refuses_in_one_line(stdin: object, options: tuple[str, ...], message: str):
    result = run("explain", *options, "-", stdin=stdin)
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("kind", "rule", "body", "stored", "priority"),
    [
        ("vllm", "priority: -3, store: {prompts: 5%, retention: 10d}", {},
         "prompt and answer of 5% of requests, for 10d", -3),
        ("vllm", "store: {prompts: all}", {"store": False}, "nothing: the request says store: false", None),
        ("openai", "priority: -3", {}, "nothing", None),
    ],
)  # fmt: skip
def test_explain_says_what_is_kept_and_which_priority_is_sent(
    tmp_path: Path, kind: str, rule: str, body: dict[str, object], stored: str, priority: int | None
):
    file = tmp_path / "p.yaml"
    backend = f"{{kind: {kind}, url: 'http://127.0.0.1:9', arms: plain}}"
    file.write_text(f"version: 1\nbackends:\n  b: {backend}\nrules:\n  - {{{rule}}}\n")
    found = json.loads(run("explain", "--json", "--policy", file, "-", stdin=BODY | body).output)
    assert (found["stored"], found["priority"]) == (stored, priority)
    text = run("explain", "--policy", file, "-", stdin=BODY | body).output
    assert f"stored    {stored}" in text
    assert (f"priority  {priority}, sent" in text) == (priority is not None)


def test_explain_says_what_a_client_would_be_refused(tmp_path: Path):
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nbackends: {v: {kind: vllm, url: 'http://h', arms: eagle-k3}}\n", encoding="utf-8")
    found = json.loads(run("explain", "--json", "--policy", file, "-", stdin=BODY | {"min_p": 0.1}).output)
    assert found["state"] == "refused"
    assert found["arm"] is None
    assert "min_p" in found["refused"]["message"]


@pytest.mark.parametrize("file", sorted((POLICIES / "tests").glob("*.yaml")), ids=lambda file: file.name)
def test_shipped_tests_pass_and_reach_every_rule(file: Path):
    result = run("test", "--json", file)
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["failed"] == 0
    assert report["rules_without_test"] == {}


def test_every_shipped_policy_has_tests():
    assert {file.name for file in POLICIES.glob("*.yaml")} == {
        file.name for file in (POLICIES / "tests").glob("*.yaml")
    }


def test_failing_tests_say_what_came_instead(tmp_path: Path):
    (tmp_path / "p.yaml").write_text(
        "version: 1\nrules: [{name: a, when: {task: code}, path: plain}, {name: b}]\n", encoding="utf-8"
    )
    (tmp_path / "t.yaml").write_text(
        """version: 1
policy: p.yaml
tests:
  - {name: first, request: Hello, with: {task: code}, expect: {rule: b, path: speculative, allows: ngram, veto: min_p}}
  - {name: second, request: {messages: nonsense}, expect: {rule: b}}
  - name: third
    request: Hello
    with: {task: chat}
    expect: {rule: b, denies: [plain, x-k2], refused: true, observes: a}
""",
        encoding="utf-8",
    )
    result = run("test", tmp_path / "t.yaml")
    assert result.exit_code == 1
    found = result.output
    assert f"{tmp_path / 't.yaml'}:4:1: error: first: rule: expected 'b', got 'a'" in found
    assert "first: path: expected 'speculative', got 'plain'" in found
    assert "first: allows: 'ngram' is not among engine/plain" in found
    assert "first: veto: 'min_p' is not among no vetoes" in found
    assert ":5:1: error: second: the request is not valid: messages" in found
    assert "third: denies: 'engine/plain' is allowed by rule 'b'" in found
    assert "third: refused: expected True" in found
    assert "third: observes: rule 'a' does not hold" in found
    assert "0 passed, 3 failed" in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 1\npolicy: p.yaml\ntests: [{name: a, request: x, expect: {}}]", "expected at least one key"),
        ("version: 1\npolicy: p.yaml\ntests: [{name: a, request: x, expect: {rul: b}}]", "did you mean 'rule'?"),
        ("version: 1\npolicy: /etc/passwd\ntests: [{name: a, request: x, expect: {rule: b}}]", "relative to this"),
        ("version: 1\ntests: []", "expected 1 to 10,000 entries"),
        (
            "version: 1\npolicy: p\ntests: [{name: a, request: x, with: {time: noon}, expect: {rule: b}}]",
            "a time such as",
        ),
    ],
)
def test_files_of_tests_are_checked_too(text: str, message: str, tmp_path: Path):
    (tmp_path / "t.yaml").write_text(text, encoding="utf-8")
    result = run("test", tmp_path / "t.yaml")
    assert result.exit_code == 1
    assert message in result.output


def test_diff(tmp_path: Path):
    old, new = POLICIES / "default.yaml", tmp_path / "new.yaml"
    new.write_text(old.read_text(encoding="utf-8").replace("holdout: 1%", "holdout: 2%"), encoding="utf-8")
    result = run("diff", "--exit-code", old, new)
    assert (result.exit_code, result.output) == (1, "changed  rule 'default': holdout 1% -> 2%\n")
    (change,) = json.loads(run("diff", "--json", old, new).output)
    assert change == {"kind": "changed", "what": "rule 'default'", "key": "holdout", "before": "1%", "after": "2%"}
    assert run("diff", old, old).output == "no difference in meaning\n"


def test_schema_is_the_shipped_one():
    assert json.loads(run("schema").output) == json.loads((POLICIES / "schema.json").read_text(encoding="utf-8"))
