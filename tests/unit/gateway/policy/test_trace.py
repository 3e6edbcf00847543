"""Why rules hold or not."""

from gateway.policy import Facts, enforced, parse_policy
from gateway.policy.describe import rule_lines
from gateway.policy.trace import trace

POLICY = parse_policy(
    """version: 1
rules:
  - {name: one, when: {task: [code, math], temperature: "<= 0.5", header: {x-team: ads}}}
  - {name: two, mode: observe, when: {any: [{stream: true}, {load: 3}], not: {app: batch}}}
  - {name: three, when: {seed: set, share: 5%}}
  - {name: four, when: {time: {days: mon-fri, hours: 09:00-10:00, zone: Europe/Berlin}}}
  - {name: rest, probe: 3%, owner: me}
""",
    "p.yaml",
)


def test_every_reason_names_the_value_of_the_request():
    steps = trace(POLICY, Facts(task="chat", temperature=0.7, load=3, share=0.5, at=0.0))
    assert [(step.rule, step.line, step.holds) for step in steps] == [
        ("one", 3, False),
        ("two", 4, True),
        ("three", 5, False),
        ("four", 6, False),
        ("rest", 7, True),
    ]
    assert steps[0].because == (
        "needs: task is code or math (here: chat); needs: temperature <= 0.5 (here: 0.7); "
        "needs: header x-team is ads (here: absent)"
    )
    assert steps[1].mode == "observe"
    assert steps[2].because == (
        "needs: a seed is set (here: False); needs: the conversation is in the first 5% (here: 50.0%)"
    )
    assert "here: Thu 01:00" in steps[3].because
    assert steps[-1].because == "every request"


def test_the_last_step_is_the_rule_that_applies():
    for facts in (Facts(task="code", temperature=0, headers={"x-team": "ads"}), Facts(stream=True), Facts(seed=True)):
        assert trace(POLICY, facts)[-1].rule == enforced(POLICY, facts).name


def test_a_rule_in_words():
    assert rule_lines(POLICY.rules[-1]) == ["when every request", "path: auto", "probe: 3%", "owner: me"]
