"""The pages beside the live one: a request by its id, policy versions, keys. Called by `gateway/api/ops_pages.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.db import Activation, Found, StoredKey
from gateway.ops.model import ApplicationFigures
from gateway.ops.render import environment
from gateway.types import Arm

_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Request", ("request_id", "at", "endpoint", "model", "key_id", "stream", "temperature", "conversation")),
    ("Task", ("task", "confidence", "source")),
    ("Decision", ("state", "rule", "policy", "load", "propensity", "incumbent", "fallback")),
    (
        "Answer",
        ("status", "error_code", "finish_reason", "prompt_tokens", "completion_tokens", "loop"),
    ),
    ("Timings, seconds", ("overhead_s", "ttft_s", "tpot_s", "e2e_s")),
    ("Rounds", ("rounds", "drafted", "accepted", "zero_rounds")),
)


class Compared(msgspec.Struct):
    """An earlier policy beside the one in force."""

    hash: str
    text: str
    changes: list[str]


def request_page(wanted: str, found: Found | None, latest: Sequence[dict[str, Any]]) -> str:
    """Show one request, or the newest ones."""
    shown = [row | {"arm": _arm(row)} for row in latest]
    extra: dict[str, Any] = {"groups": [], "rounds": [], "arm": ""}
    if found is not None:
        row = found.request
        spec = row.get("spec") or {}
        groups = [(title, [(name, _value(row.get(name))) for name in names]) for title, names in _GROUPS]
        decision = row.get("decision") or {}
        groups.append(("Numbers of the decision", _pairs(decision.get("numbers"))))
        groups.append(("Signals", _pairs(row.get("signals"))))
        costs = {name: spec[name] for name in ("draft_s", "verify_s", "plain_s", "batch_mean") if name in spec}
        groups.append(("Cost as the backend reports it", _pairs(costs)))
        rounds = list(zip(spec.get("step_drafted") or (), spec.get("step_emitted") or (), strict=False))
        extra = {"groups": [group for group in groups if group[1]], "rounds": rounds, "arm": _arm(row)}
    return _page("requests.html", "Requests", "requests", wanted=wanted, found=found, latest=shown, **extra)


def policies_page(
    hash: str,
    versions: Sequence[Activation],
    compared: Compared | None,
    token: str,
    *,
    done: str = "",
    refused: str = "",
) -> str:
    """Show the history, and what going back to one version would change."""
    shown = {"hash": hash, "versions": versions, "compared": compared, "token": token}
    return _page("policies.html", "Policies", "policies", **shown, done=done, refused=refused)


def keys_page(keys: Iterable[StoredKey], used: Mapping[str, ApplicationFigures], since: str) -> str:
    """Show every key with its limits and its use."""
    rows = [(key, used.get(key.key_id) or ApplicationFigures(key.key_id)) for key in keys]
    return _page("keys.html", "Keys", "keys", keys=rows, since=since)


def _page(template: str, title: str, here: str, **values: Any) -> str:  # noqa: ANN401  # what each template names
    return environment().get_template(template).render(title=title, here=here, **values)


def _arm(row: Mapping[str, Any]) -> str:
    return str(Arm(row["backend"], row["method"], row["k"]))


def _pairs(values: object) -> list[tuple[str, str]]:
    return [(str(name), _value(value)) for name, value in values.items()] if isinstance(values, Mapping) else []


def _value(value: object) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else str(value)
