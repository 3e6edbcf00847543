"""The simulator's cost file and time model. `breakeven engine … --costs-out F` writes such a file.

At batch B, all rows alike, with kv = prompt tokens + output position at the round's start, in seconds:
    step or verify = target.fixed + B·(k + 1)·target.per_token + B·kv·target.per_kv_token
    draft          = fixed + (k + 1)·per_draft_token + B·kv·per_kv_token, or share_of_verify · verify
    round          = draft + verify + overhead; a plain or undrafted step is k = 0 without a draft.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import yaml

from cli.simulation.errors import InputError

TARGET_KEYS = ("fixed", "per_token", "per_kv_token")
DRAFTER_KEYS = ("fixed", "per_draft_token", "per_kv_token")


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds as a linear function of the draft length and of the context: base + per_k·(k + 1) + per_kv·kv."""

    base: float
    per_k: float
    per_kv: float

    def at(self, k: float, kv: float) -> float:
        """Return the seconds of one step."""
        return self.base + self.per_k * (k + 1) + self.per_kv * kv


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of one method at one batch size; what the controller is told (`gateway.routing.costs.Costs`)."""

    batch: int
    overhead: float
    verify: Line
    draft: Line

    def plain_s(self, load: float, context: float) -> float:
        """Return the seconds of a plain step (the load is always the file's batch)."""
        del load
        return self.verify.at(0, context) + self.overhead

    def ratios(self, method: str, k: float, load: float, context: float) -> tuple[float, float]:
        """Return (α, β) of a round; the overhead of a round belongs to its verification."""
        del method, load
        plain = self.verify.at(0, context) + self.overhead
        return self.draft.at(k, context) / plain, (self.verify.at(k, context) + self.overhead) / plain - 1.0

    def round_line(self, k: int) -> tuple[float, float]:
        """Return (base, per_kv): a round at `k`, or a plain step at 0, takes base + per_kv·kv seconds."""
        base = self.verify.at(k, 0) + self.overhead
        if k == 0:
            return base, self.verify.per_kv
        return base + self.draft.at(k, 0), self.verify.per_kv + self.draft.per_kv


def read_costs(path: Path, method: str, batch: int) -> CostModel:
    """Return the costs of a method at a batch size. Raises InputError naming file, line and field."""
    root = _compose(path)
    top = _mapping(root, str(path), "", ("overhead", "target", "drafters"))
    where = str(path)
    target = _numbers(top, "target", where, TARGET_KEYS, required=("fixed", "per_token"))
    overhead = _number(top["overhead"], where, "overhead") if "overhead" in top else 0.0
    if "drafters" not in top:
        raise InputError(where, _line(root), "drafters", "expected an object from method to costs")
    drafters = _mapping(top["drafters"], where, "drafters", None)
    if method not in drafters:
        names = ", ".join(drafters) or "none"
        raise InputError(where, _line(top["drafters"]), f"drafters.{method}", f"expected costs (methods here: {names})")
    verify = Line(target["fixed"], batch * target["per_token"], batch * target["per_kv_token"])
    if verify.base + verify.per_k + overhead <= 0:
        raise InputError(where, _line(top["target"]), "target", "expected a plain step to take more than 0 seconds")
    return CostModel(batch, overhead, verify, _drafter(drafters, method, where, batch, verify))


def _drafter(drafters: dict[str, yaml.Node], method: str, where: str, batch: int, verify: Line) -> Line:
    field = f"drafters.{method}"
    keys = _mapping(drafters[method], where, field, ("share_of_verify", *DRAFTER_KEYS))
    if "share_of_verify" in keys:
        if len(keys) > 1:
            raise InputError(
                where,
                _line(drafters[method]),
                field,
                "expected share_of_verify alone or fixed, per_draft_token, per_kv_token",
            )
        share = _number(keys["share_of_verify"], where, f"{field}.share_of_verify")
        return Line(share * verify.base, share * verify.per_k, share * verify.per_kv)
    if not keys:
        raise InputError(where, _line(drafters[method]), field, "expected share_of_verify or fixed, per_draft_token, …")
    costs = _numbers(drafters, method, where, DRAFTER_KEYS, required=(), prefix="drafters.")
    return Line(costs["fixed"], costs["per_draft_token"], batch * costs["per_kv_token"])


def _compose(path: Path) -> yaml.Node:
    try:
        text = path.read_bytes().decode("utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise InputError(str(path), None, "", f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), None, "", f"expected UTF-8 text ({error.reason} at byte {error.start})") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(str(path), line, "", f"expected YAML ({error.problem})") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(str(path), None, "", f"expected YAML ({error})") from error
    if root is None:
        raise InputError(str(path), None, "", "expected the keys overhead, target and drafters, found nothing")
    return root


def _mapping(node: yaml.Node, where: str, field: str, known: tuple[str, ...] | None) -> dict[str, yaml.Node]:
    """Return a mapping's values by key. Raises InputError for other nodes, unknown and repeated keys."""
    if not isinstance(node, yaml.MappingNode):
        raise InputError(where, _line(node), field, "expected an object")
    values: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = str(key.value)
        here = f"{field}.{name}" if field else name
        if known is not None and name not in known:
            raise InputError(where, _line(key), here, f"unknown key, expected one of {', '.join(known)}")
        if name in values:
            raise InputError(where, _line(key), here, "given twice")
        values[name] = value
    return values


def _numbers(  # noqa: PLR0917 - a place in the file and what is expected there
    parent: dict[str, yaml.Node],
    name: str,
    where: str,
    known: tuple[str, ...],
    required: tuple[str, ...],
    prefix: str = "",
) -> dict[str, float]:
    field = prefix + name
    if name not in parent:
        raise InputError(where, None, field, f"expected an object with {', '.join(known)}")
    keys = _mapping(parent[name], where, field, known)
    for key in required:
        if key not in keys:
            raise InputError(where, _line(parent[name]), f"{field}.{key}", "expected a number of seconds")
    return {key: _number(keys[key], where, f"{field}.{key}") if key in keys else 0.0 for key in known}


def _number(node: yaml.Node, where: str, field: str) -> float:
    value = node.value if isinstance(node, yaml.ScalarNode) else None
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and 0 <= number < 1e6):
        raise InputError(where, _line(node), field, "expected a number of seconds, not negative")
    return number


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
