"""`deploy/`: every expression parses, every metric in it is exported, every alert has its paragraph in the runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Metrics
from gateway.policy.lifecycle import Held
from gateway.policy.loader import load_policy
from gateway.types import Arm, BackendState
from tests.fixtures.records import make_record
from tests.repo.tree import ROOT, text

PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = [
    rule
    for name in ("recording.yml", "alerts.yml")
    for group in yaml.safe_load(text(f"deploy/prometheus/{name}"))["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
DASHBOARD = json.loads(text("deploy/grafana/breakeven.json"))
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [rule["expr"] for rule in RULES] + PANELS + [a["expr"] for a in DASHBOARD["annotations"]["list"]]


def selectors(node):
    """Names of all series that an expression reads."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (child := getattr(node, name, None)) is not None:
            yield from selectors(child)
    args = getattr(node, "args", None)
    for child in args if isinstance(args, list) else getattr(args, "args", None) or ():
        yield from selectors(child)


@pytest.fixture(scope="module")
def exported():
    """Names of all samples on the page of a gateway that has seen a request."""
    arms = (Arm("engine"), Arm("engine", "ngram", 4))
    state = BackendState(
        "engine", "engine", True, arms, "m", 2048, "e", False, True, True, True, running=0
    )  # fmt: skip
    stores = {"redis": {"ok": True, "age_s": 1}, "recorder": {"submitted": 1, "queued": 0, "spooled_bytes": 0}}
    held = Held(load_policy(ROOT / "policies" / "default.yaml"))
    audits = {("engine/ngram-k4", "different"): 1}
    metrics = Metrics(lambda: [state], policy=lambda: held, stores=lambda: stores, audits=audits)
    record = make_record("r1")
    record.decision.numbers["zero_accept_alarm"] = False
    metrics.submit(record)
    page = metrics.page().decode()
    return {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_series_is_exported_or_recorded(expression, exported):
    read = set(selectors(promql_parser.parse(expression)))
    assert read, "nothing is read"
    assert read <= exported | {rule["record"] for rule in RULES if "record" in rule}


def test_every_alert_has_its_paragraph_and_no_other_is_there():
    assert set(ALERTS) == set(re.findall(r"^## (\w+)$", text("docs/runbook.md"), re.M))
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_burn_rates_have_two_windows_each():
    burning = [rule["expr"] for rule in ALERTS.values() if "14.4" in rule["expr"]]
    assert len(burning) == 3
    for expression in burning:
        assert set(re.findall(r"ratio_rate(\w+)", expression)) == {"5m", "30m", "1h", "6h"}


def test_what_vllms_own_meter_reads_is_there(exported):
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"):
        assert f"vllm:spec_decode_{name}_total" in exported


def test_records_that_a_full_spool_pushed_out_or_a_store_refused_are_lost_records():
    sinks = [{"name": "redis", "lost": 0, "refused": 1}, {"name": "database", "lost": 5}]
    stores = {"recorder": {"submitted": 9, "dropped": 2, "sinks": sinks}}
    page = Metrics(list, stores=lambda: stores).page().decode()
    assert "breakeven_records_lost_total 8.0" in page


def test_a_counter_that_begins_at_its_first_difference_raises_the_alert():
    assert "unless" in ALERTS["BreakevenAnswersDiffer"]["expr"]  # `increase` sees nothing of a series' first value
    assert "offset 1h" in ALERTS["BreakevenAnswersDiffer"]["expr"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed; the parser has read the rules")
def test_promtool_agrees():
    for command in (("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")):
        done = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
