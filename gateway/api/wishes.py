"""What a client asks by `x-breakeven-*` headers, checked: an unknown value is a 400 that names the header."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, get_args

from engine.messages import Speculation
from gateway.errors import InvalidRequest, PermissionDenied
from gateway.types import Arm, BackendState, Identity, PathWish

TASK, PATH, ARM, DEBUG = "x-breakeven-task", "x-breakeven-path", "x-breakeven-arm", "x-breakeven-debug"
_PATHS: dict[str, PathWish] = {path: path for path in get_args(PathWish)}
_VISIBLE = ("user-agent", "traceparent")
_SECRET = frozenset({"x-api-key", "x-auth-token", "x-amz-security-token"})


class Wishes(NamedTuple):
    """The headers, read."""

    task: str | None
    path: PathWish
    arm: Arm | None
    debug: bool


NONE = Wishes(None, "auto", None, False)


def has_wishes(headers: Mapping[str, str]) -> bool:
    """Return whether any of the four headers is there: most requests have none."""
    return TASK in headers or PATH in headers or ARM in headers or DEBUG in headers


def read_wishes(
    headers: Mapping[str, str], tasks: Sequence[str], states: Iterable[BackendState], identity: Identity
) -> Wishes:
    """Read the four headers.

    Raises:
        InvalidRequest: a value is unknown; `param` is the header.
        PermissionDenied: this key may not choose its path.
    """
    task, arm_name = headers.get(TASK), headers.get(ARM)
    if task is not None and task not in tasks:
        raise _unknown(TASK, task, tasks)
    path = _PATHS.get(headers.get(PATH, "auto"))
    if path is None:
        raise _unknown(PATH, headers[PATH], list(_PATHS))
    debug = headers.get(DEBUG, "0")
    if debug not in ("0", "1"):
        raise _unknown(DEBUG, debug, ("0", "1"))
    arm = None if arm_name is None else _arm(arm_name, states)
    if not identity.may_force and (arm is not None or path != "auto"):
        header = ARM if arm is not None else PATH
        raise PermissionDenied(f"this key may not choose its path ({header})", param=header, code="may_not_force")
    return Wishes(task, path, arm, debug == "1")


def visible_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a policy may look at: `x-*`, the user agent, the trace; never credentials."""
    return {
        name: value
        for name, value in headers.items()
        if (name.startswith("x-") and name not in _SECRET) or name in _VISIBLE
    }


def forced_arm(speculation: Speculation, states: Iterable[BackendState], model: str) -> Arm:
    """Return the offered arm nearest to a client's own `speculation`; its k need not be one that a policy offers.

    Raises:
        InvalidRequest: no backend with this model switches per request, or none has this method.
    """
    switching = [state for state in states if state.per_request_switch and state.model == model]
    if not switching:
        message = f"speculation: no backend of model {model!r} switches speculation per request"
        raise InvalidRequest(message, param="speculation")
    offered = [arm for state in switching for arm in state.arms]
    fitting = [arm for arm in offered if arm.method == speculation.method]
    if not fitting:
        message = f"speculation.method: {speculation.method!r} is not offered; known: {_methods(offered)}"
        raise InvalidRequest(message, param="speculation.method")
    return min(fitting, key=lambda arm: abs(arm.k - speculation.k))


def _methods(arms: Sequence[Arm]) -> str:
    return ", ".join(sorted({arm.method for arm in arms}))


def _arm(name: str, states: Iterable[BackendState]) -> Arm:
    known = [arm for state in states for arm in state.arms]
    try:
        arm = Arm.parse(name)
    except ValueError as error:
        raise InvalidRequest(f"{ARM}: {error}", param=ARM, code="invalid_value") from error
    if arm not in known:
        raise _unknown(ARM, name, [str(arm) for arm in known])
    return arm


def _unknown(header: str, value: str, known: Sequence[str]) -> InvalidRequest:
    return InvalidRequest(
        f"{header}: unknown value {value[:100]!r}; expected one of: {', '.join(known)}",
        param=header,
        code="invalid_value",
    )
