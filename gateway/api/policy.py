"""`/v1/policy`: the policy in force, its history, explanations; applying and rolling back. Needs the operator role.

Changes carry `If-Match` with the hash that the caller saw in force (the `ETag` of `GET /v1/policy`): where another
policy is in force meanwhile the answer is 409 and nothing changes. Browsers cannot send `If-Match` across sites without
asking first, so that no foreign page can change a policy.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from litestar import Controller, Request, Response, get, post, put
from litestar.datastructures import State
from litestar.params import FromPath

from gateway.access import Access
from gateway.api.explaining import Circumstances, circumstances_of, request_to_explain
from gateway.api.given import Given
from gateway.api.ops import require_operator
from gateway.db import Activation
from gateway.errors import InvalidRequest, NotFound, PolicyError
from gateway.explain import Explanation, SavedSnapshot, explain
from gateway.fingerprint import conversation_of
from gateway.policy import Policy, within
from gateway.policy.diff import Change, diff
from gateway.policy.loader import MAX_FILE
from gateway.policy_reload import PolicyReloader
from gateway.refresh import Refresher
from gateway.routing import Snapshot, thresholds_of
from gateway.serve import Service
from gateway.types import Identity

T = TypeVar("T", bound=msgspec.Struct)
Req = Request[Any, Any, State]
Keys = Given[Access]
Reloader = Given[PolicyReloader]
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/plain")


class NewPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `PUT /v1/policy`."""

    text: str
    name: str = "policy"
    reason: str = ""


class Back(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/policy/rollback`."""

    hash: str | None = None
    """The version to go back to, or the beginning of its hash; absent: the one before the present."""
    reason: str = ""


class ToExplain(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/policy/explain`."""

    request: dict[str, Any]
    around: dict[str, Any] = msgspec.field(default_factory=dict, name="with")
    policy: str | None = None
    """A policy's text; absent: the one in force."""


class PolicyController(Controller):
    """The routes."""

    path = "/v1/policy"

    @get("/", sync_to_thread=False)
    def current(self, request: Req, access: Keys, policies: Reloader) -> Response[dict[str, Any]]:
        """Return the policy in force, and what was refused since."""
        require_operator(access, request)
        held = policies.held
        return Response(held.describe() | {"text": held.policy.text}, headers=_etag(held.policy.hash))

    @put("/")
    async def apply(self, request: Req, access: Keys, policies: Reloader) -> Response[Activation]:
        """Check a policy and put it into force on all gateways."""
        actor = _operator(access, request)
        change = await _change(request)
        made = await policies.apply(
            change.text,
            name=change.name[:200],
            actor=actor.name,
            reason=change.reason[:1000],
            expected=_if_match(request),
        )
        return Response(made, headers=_etag(made.hash))

    @post("/rollback", status_code=200)
    async def rollback(self, request: Req, access: Keys, policies: Reloader) -> Response[Activation]:
        """Put an earlier version into force again."""
        actor = _operator(access, request)
        back = _decode(await request.body() or b"{}", Back)
        made = await policies.rollback(
            back.hash, actor=actor.name, reason=back.reason[:1000], expected=_if_match(request)
        )
        return Response(made, headers=_etag(made.hash))

    @post("/check", status_code=200)
    async def check(self, request: Req, access: Keys, policies: Reloader) -> dict[str, Any]:
        """Say what is wrong with a policy, without using it."""
        require_operator(access, request)
        change = await _change(request)
        try:
            policy = await policies.read(change.text, change.name)
        except PolicyError as error:
            return {"ok": False, "findings": error.diagnostics, "hash": None}
        return {"ok": True, "findings": list(policy.warnings), "hash": policy.hash}

    @get("/versions")
    async def versions(self, request: Req, access: Keys, policies: Reloader) -> list[Activation]:
        """Return activations, newest first."""
        require_operator(access, request)
        return await policies.history()

    @get("/versions/{hash:str}")
    async def version(self, request: Req, access: Keys, policies: Reloader, hash: FromPath[str]) -> dict[str, str]:
        """Return one version's text, by its hash or the beginning of it."""
        require_operator(access, request)
        found = await policies.version(hash)
        if found is None:
            raise NotFound(f"no policy version {hash[:64]!r}", param="hash", code="no_such_version")
        return {"hash": found[0], "name": found[1], "text": found[2]}

    @get("/versions/{hash:str}/diff")
    async def diff(self, request: Req, access: Keys, policies: Reloader, hash: FromPath[str]) -> list[Change]:
        """Return what going back to a version would change in meaning."""
        require_operator(access, request)
        found = await policies.version(hash)
        if found is None:
            raise NotFound(f"no policy version {hash[:64]!r}", param="hash", code="no_such_version")
        return diff(policies.held.policy, await policies.read(found[2], f"version {found[0]}"))

    @post("/explain", status_code=200)
    async def explain(
        self,
        request: Req,
        access: Keys,
        service: Given[Service],
        policies: Reloader,
        refresher: Given[Refresher],
    ) -> Explanation:
        """Explain a request with the statistics and backends of this moment; nothing is sent."""
        require_operator(access, request)
        asked = _decode(await request.body(), ToExplain)
        if asked.policy is None:
            return explain_live(service, service.policy(), service.snapshot(), asked)
        policy = await policies.read(asked.policy, "policy")
        return explain_live(service, policy, await refresher.seen_under(thresholds_of(policy.rules)), asked)

    @get("/snapshot", sync_to_thread=False)
    def snapshot(
        self, request: Req, access: Keys, service: Given[Service], refresher: Given[Refresher]
    ) -> SavedSnapshot:
        """Return the statistics of this moment, for explanations elsewhere."""
        require_operator(access, request)
        buckets, costs = refresher.inputs()
        return SavedSnapshot(service.snapshot().made_at, buckets, costs, service.states())


def explain_live(service: Service, policy: Policy, snapshot: Snapshot, asked: ToExplain) -> Explanation:
    """Explain with what this gateway knows. Raises InvalidRequest naming the field."""
    around: Circumstances = circumstances_of({"share": None} | asked.around)
    made, tokens = request_to_explain(msgspec.json.encode(asked.request), around)
    if around.task is not None and around.task not in policy.task_names:
        known = ", ".join(policy.task_names)
        raise InvalidRequest(f"with.task: unknown task; expected one of {known}", param="with.task")
    states = {state.name: state for state in service.states()}
    having = {name: state for name, state in states.items() if state.model == made.model}
    assumed = [] if having else [f"no backend has the model {made.model!r}: all of them are taken as if they had"]
    doubt = policy.classifier
    seen = service.classifier().classify(
        made.body, declared=around.task, threshold=doubt.threshold, fallback=doubt.fallback_task
    )
    seen = within(seen, policy.task_names, doubt.fallback_task, around.task)
    return explain(
        policy,
        made,
        seen,
        snapshot,
        having or states,
        prompt_tokens=tokens,
        load=around.load,
        conversation=conversation_of(made, service.secret),
        share=around.share,
        assumed=assumed,
    )


def _operator(access: Access, request: Req) -> Identity:
    """Return the operator who asks; a change is never made by a browser's remembered password."""
    return access.operator(dict(request.headers))


def _etag(hash: str) -> dict[str, str]:
    return {"etag": f'"{hash}"', "cache-control": "no-store"}


def _if_match(request: Req) -> str:
    """Read the hash that the caller saw in force. Raises InvalidRequest."""
    value = request.headers.get("if-match", "").strip().removeprefix("W/")
    if not value:
        message = "send If-Match with the hash of the policy in force (ETag of GET /v1/policy), or * for any"
        raise InvalidRequest(message, param="if-match", code="if_match_required")
    return value.strip('"')


async def _change(request: Req) -> NewPolicy:
    """Read a policy: YAML as it is, or JSON with text, name and reason. Raises InvalidRequest."""
    raw = await request.body()
    if len(raw) > 2 * MAX_FILE:
        raise InvalidRequest(f"a policy has at most {MAX_FILE // 1024} KiB", param="text")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return _decode(raw, NewPolicy)
    if kind not in YAML_TYPES:
        raise InvalidRequest(f"content-type: expected application/json or {YAML_TYPES[0]}", param="content-type")
    try:
        return NewPolicy(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise PolicyError([f"policy:1:1: error: not UTF-8: byte 0x{raw[error.start]:02x} at {error.start}"]) from error


def _decode(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"body: {error}", code="invalid_body") from error
