"""The shipped JSON Schema: current, valid, and of one mind with the loader."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.errors import PolicyError
from gateway.policy import parse_policy
from gateway.policy.jsonschema import policy_schema

POLICIES = Path(__file__).parents[4] / "policies"
VALIDATOR = Draft202012Validator(policy_schema())


def test_the_shipped_schema_is_current():
    shipped = json.loads((POLICIES / "schema.json").read_text(encoding="utf-8"))
    assert shipped == policy_schema(), "run `breakeven policy schema > policies/schema.json`"
    Draft202012Validator.check_schema(shipped)


@pytest.mark.parametrize("file", sorted(POLICIES.glob("*.yaml")), ids=lambda file: file.name)
def test_shipped_policies_satisfy_it(file: Path):
    assert list(VALIDATOR.iter_errors(yaml.safe_load(file.read_text(encoding="utf-8")))) == []


def both(rule: str) -> tuple[bool, bool]:
    """Whether the schema and the loader accept a policy with this rule."""
    text = f"version: 1\nrules:\n  - {rule}\n"
    try:
        parse_policy(text, "p.yaml", env={})
        loads = True
    except PolicyError:
        loads = False
    return VALIDATOR.is_valid(yaml.safe_load(text)), loads


@pytest.mark.parametrize(
    "rule",
    [
        "{name: a b, owner: 'x y', path: auto, mode: observe, fallback_path: speculative}",
        "{when: {all: [{task: code}, {any: [{stream: true}, {not: {seed: set}}]}]}}",
        "{when: {temperature: '<= 0.5', load: {min: 1, max: 3}, prompt_tokens: 1..20}}",
        "{when: {time: 09:00-17:30, share: 5%, header: {x-a: [b, 'c*'], x-d: false}}}",
        "{when: {time: {days: mon-fri, hours: '22:00-06:00', zone: Europe/Berlin}}}",
        "{arms: plain, draft_lengths: 4, priority: -1, sticky: false, audit: 0.5%}",
        "{p99: off, zero_accept_alarm: off, probe: off, holdout: 0}",
        "{p99: {metric: e2e, budget: 1.5s}, store: {prompts: all, retention: 2w}}",
        "{break_even: {margin: 1%, confidence: 0.9, min_requests: 1, half_life: 3h}}",
    ],
)
def test_both_accept(rule: str):
    assert both(rule) == (True, True)


@pytest.mark.parametrize(
    "rule",
    [
        "{nam: a}",
        "{path: fast}",
        "{mode: dry}",
        "{draft_lengths: [0]}",
        "{draft_lengths: []}",
        "{when: {tsk: code}}",
        "{when: {all: {task: code}}}",
        "{when: {temperature: warm}}",
        "{when: {time: 9-17}}",
        "{p99: {budget: 80}}",
        "{p99: {metric: mean, budget: 80ms}}",
        "{probe: 7}",
        "{holdout: 5 percent}",
        "{break_even: {margins: 1%}}",
        "{sticky: maybe}",
        "{priority: 1.5}",
        "{when: {header: {x-a: {b: c}}}}",
        "[]",
    ],
)
def test_both_refuse(rule: str):
    assert both(rule) == (False, False)
