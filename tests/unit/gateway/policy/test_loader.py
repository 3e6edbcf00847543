"""Reading a policy: values in their units, and findings that point at the place."""

from pathlib import Path

import pytest

from gateway.errors import PolicyError
from gateway.policy import BreakEven, load_policy, parse_policy
from gateway.policy.schema import P99, Store
from gateway.types import DEFAULT_TASKS, Arm

HEAD = "version: 1\nbackends: {e: {url: 'http://h:1/', arms: [plain, ngram-k2, ngram-k4]}}\n"


def findings(text: str, **options) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p.yaml", **options)
    return caught.value.diagnostics


def test_default_policy_has_one_engine_and_one_rule():
    policy = load_policy(Path("policies/default.yaml"), env={"BREAKEVEN_ENGINE_URL": "http://127.0.0.1:9/"})
    assert policy.warnings == ()
    (engine,) = policy.backends
    assert (engine.name, engine.kind, engine.url) == ("engine", "engine", "http://127.0.0.1:9")
    assert Arm("engine", "ngram", 4) in engine.arms
    assert policy.task_names == DEFAULT_TASKS
    (rule,) = policy.rules
    assert rule.p99 == P99("tpot", 600.0, None, 1.1)
    assert rule.holdout == 0.01


def test_units_and_every_key_of_a_rule():
    policy = parse_policy(
        HEAD
        + """
rules:
  - name: all keys
    when: {task: code}
    path: auto
    arms: [e/ngram-*, plain]
    draft_lengths: [2, 4]
    break_even: {margin: 2%, confidence: 0.9, min_requests: 20, half_life: 10m}
    zero_accept_alarm: 60%
    p99: {metric: itl, window: 1h, budget: 80ms, max_ratio_to_plain: 1.2}
    probe: off
    holdout: 0.5%
    sticky: no
    fallback_path: speculative
    priority: -3
    store: {prompts: 5%, retention: 30d}
    audit: 0.5%
    mode: observe
    owner: search team
""",
        "p.yaml",
    )
    rule = policy.rules[0]
    assert rule.break_even == BreakEven(0.02, 0.9, 20, 600.0)
    assert rule.p99 == P99("itl", 3600.0, 0.08, 1.2)
    assert (rule.probe, rule.holdout, rule.audit, rule.zero_accept_alarm) == (0.0, 0.005, 0.005, 0.6)
    assert rule.store == Store(0.05, 30 * 86400.0)
    assert (rule.sticky, rule.fallback_path, rule.priority, rule.mode) == (False, "speculative", -3, "observe")
    assert [rule.allows(arm) for arm in policy.backends[0].arms] == [True, True, True]
    assert policy.rules[-1].name == "default"


@pytest.mark.parametrize(
    ("rule", "place", "message"),
    [
        ("{when: {tsk: code}}", "4:13", "unknown key 'tsk' in when (did you mean 'task'?)"),
        ("{draft_lenghts: 3}", "4:6", "(did you mean 'draft_lengths'?)"),
        ("{when: {task: cod}}", "4:19", "unknown task 'cod' (did you mean 'code'?)"),
        ("{arms: [x/plain]}", "4:13", "unknown backend 'x'"),
        ("{arms: [ngrm-k4]}", "4:13", "no arm is called 'ngrm-k4' (did you mean 'ngram-k4'?)"),
        ("{probe: 7}", "4:13", "(did you mean '7%'?)"),
        ("{p99: {budget: 80}}", "4:20", "did you mean '80s' or '80ms'?"),
        ("{p99: {window: 10m}}", "4:11", "expected budget"),
        ("{path: plain, draft_lengths: 4}", "4:34", "contradiction: path: plain drafts nothing"),
        ("{path: speculative, arms: plain}", "4:31", "allows no arm at all"),
        ("{draft_lengths: 7, path: speculative}", "4:21", "allows no arm at all"),
        ("{when: {load: {min: 3, max: 2}}}", "4:19", "contradiction"),
        ("{priority: 99999999999999999999}", "4:16", "whole number of at most 15 digits"),
        ("{when: {temperature: 1e400}}", "4:26", "expected a number, a comparison"),
        ("{name: [a]}", "4:12", "found a list"),
        ("{name: a, name: b}", "4:15", "duplicate key 'name': first given at line 4"),
        ("{break_even: {confidence: 40%}}", "4:31", "at least 50% and at most 99.99%"),
        ("{break_even: {half_life: 10s}}", "4:30", "at least 1m and at most 3h"),
        ("{break_even: {half_life: 1d}}", "4:30", "at least 1m and at most 3h"),
        ("{mode: dry-run}", "4:12", "unknown value 'dry-run'"),
        ("{when: {header: {authorization: x}}}", "4:22", "cannot look at credentials"),
        ("{owner: !!python/name:os.system x}", "4:13", "tags are not supported"),
    ],
)
def test_findings_point_at_the_place(rule: str, place: str, message: str):
    found = findings(f"{HEAD}rules:\n  - {rule}\n")
    assert any(line.startswith(f"p.yaml:{place}: error: ") and message in line for line in found), found


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("{url: 'http://user:secret@h'}", "put the token into api_key"),
        ("{url: 'http://h/?token=x'}", "put the token into api_key"),
        ("{url: 'file:///etc/passwd'}", "expected a URL such as"),
        (
            "{url: 'http://h', kind: vllm, arms: [plain, eagle-k3]}",
            "a vllm server has one arm, fixed at launch; found 2",
        ),
        ("{url: 'http://h', arms: [b/plain]}", "an arm without its backend"),
        ("{url: 'http://h', arms: [ngram-k0]}", "with k from 1 to 64"),
        ("{kind: engine}", "the key 'url' is missing"),
        ("{url: 'http://h', kind: tgi}", "unknown value 'tgi'"),
    ],
)
def test_backends_are_checked(backend: str, message: str):
    assert any(message in line for line in findings(f"version: 1\nbackends: {{b: {backend}}}\n"))


def test_a_token_in_the_file_is_a_warning():
    (warning,) = parse_policy("version: 1\nbackends: {b: {url: 'http://h', api_key: secret}}\n", "p").warnings
    assert "use ${BREAKEVEN_" in warning
    assert "secret" not in warning


def test_thresholds_that_shape_statistics_come_in_few_sets():
    rules = [f"  - {{when: {{app: a{n}}}, break_even: {{min_requests: {n}, margin: {n}%}}}}" for n in range(1, 10)]
    (found,) = findings(f"{HEAD}rules:\n" + "\n".join(rules))
    assert found.startswith("p.yaml:12:")
    assert "8 different sets of confidence, half_life and min_requests" in found
    assert parse_policy(f"{HEAD}rules:\n" + "\n".join(rules[:8]), "p.yaml").rules


def test_several_findings_at_once():
    found = findings(HEAD + "rules:\n  - {prob: 1%}\n  - {sticky: maybe}\ncolour: red\n")
    assert [line.split(": ")[0] for line in found] == ["p.yaml:4:6", "p.yaml:5:14", "p.yaml:6:1"]


def test_variables_are_filled_in_and_only_where_allowed():
    text = "version: 1\nbackends: {e: {url: '${BREAKEVEN_A}', api_key: 'x$$${BREAKEVEN_B:-y}'}}\n"
    (backend,) = parse_policy(text, "p", env={"BREAKEVEN_A": "https://host/v1"}).backends
    assert (backend.url, backend.api_key) == ("https://host", "x$y")
    assert "x$y" not in repr(backend)
    assert "not set" in findings(text, env={})[0]
    assert (
        "expected ${BREAKEVEN_NAME}"
        in findings(text.replace("BREAKEVEN_B", "HOME"), env={"BREAKEVEN_A": "http://h"})[0]
    )
    assert "expected ${BREAKEVEN_NAME}" in findings(text.replace("BREAKEVEN_A", "BREAKEVEN_DATABASE_URL"), env={})[0]


def test_tasks_file_is_taken_into_text_and_hash(tmp_path: Path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "t.yaml").write_text("version: 1\ntasks: {billing: about money, other: }\n", encoding="utf-8")
    (tmp_path / "p.yaml").write_text(
        "version: 1\ntasks: tasks/t.yaml\nrules: [{when: {task: billing}}]\n", encoding="utf-8"
    )
    policy = load_policy(tmp_path / "p.yaml")
    assert [(task.name, task.description) for task in policy.tasks] == [("billing", "about money"), ("other", "")]
    assert policy.classifier.fallback_task == "other"
    again = parse_policy(policy.text, "stored")
    assert (again.hash, again.tasks, again.rules) == (policy.hash, policy.tasks, policy.rules)
    assert "without its tasks file" in findings("version: 1\ntasks: tasks/t.yaml\n")[0]
    (tmp_path / "p.yaml").write_text("version: 1\ntasks: ../x.yaml\n", encoding="utf-8")
    with pytest.raises(PolicyError, match="own folder"):
        load_policy(tmp_path / "p.yaml")


def test_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(PolicyError, match=r"no\.yaml:1:1: error: cannot read"):
        load_policy(tmp_path / "no.yaml")
    bad = tmp_path / "latin1.yaml"
    bad.write_bytes(b"version: 1\n# caf\xe9\n")
    with pytest.raises(PolicyError, match=r"latin1\.yaml:2:6: error: not UTF-8: byte 0xe9"):
        load_policy(bad)
