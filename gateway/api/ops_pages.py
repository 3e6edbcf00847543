"""`/ops/requests`, `/ops/policies`, `/ops/keys`: for operators; the second can put an earlier policy into force.

A browser sends a remembered password wherever a foreign page makes it go. A change therefore needs a token that only
our own page shows (a keyed hash of who asks and of the policy in force), and is refused where the browser says that
another site asks.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import Any

from litestar import Controller, Request, Response, get, post
from litestar.datastructures import State
from litestar.params import FromQuery

from gateway.access import Access
from gateway.api.given import Given
from gateway.api.ops import HEADERS, bearer_of, require_operator
from gateway.db import Database
from gateway.errors import ApiError, InvalidRequest, PermissionDenied
from gateway.ops.live import LiveReports
from gateway.ops.pages import Compared, keys_page, policies_page, request_page
from gateway.ops.window import parse_window
from gateway.policy.diff import diff
from gateway.policy_reload import PolicyReloader
from gateway.serve import Service
from gateway.types import Identity

Req = Request[Any, Any, State]
Keys = Given[Access]
Reloader = Given[PolicyReloader]
Live = Given[LiveReports]
_POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'"
_HEADERS = {**HEADERS, "content-security-policy": f"{_POLICY}; frame-ancestors 'none'"}


class OpsPagesController(Controller):
    """The pages."""

    path = "/ops"

    @get("/requests", media_type="text/html")
    async def requests(
        self, request: Req, access: Keys, database: Given[Database], id: FromQuery[str] = ""
    ) -> Response[str]:
        """Show one request, or the newest."""
        require_operator(access, request)
        wanted = id.strip()[:200]
        found = await database.request(wanted) if wanted else None
        latest = [] if found else await database.latest_requests()
        return Response(request_page(wanted, found, latest), status_code=200, headers=_HEADERS)

    @get("/keys", media_type="text/html")
    async def keys(
        self,
        request: Req,
        access: Keys,
        database: Given[Database],
        ops: Given[LiveReports],
        since: FromQuery[str] = "24h",
    ) -> Response[str]:
        """Show every key with its use."""
        require_operator(access, request)
        report = await ops.report(parse_window(since))
        used = {row.key_id: row for row in report.applications}
        return Response(keys_page(await database.list_keys(), used, since.strip()), headers=_HEADERS)

    @get("/policies", media_type="text/html")
    async def policies(
        self, request: Req, access: Keys, service: Given[Service], policies: Reloader, compare: FromQuery[str] = ""
    ) -> Response[str]:
        """Show policy versions, and one beside that in force."""
        require_operator(access, request)
        page = await _policies(_who(access, request), service, policies, compare.strip()[:64])
        return Response(page, headers=_HEADERS)

    @post("/policies/rollback", media_type="text/html", status_code=200)
    async def rollback(self, request: Req, access: Keys, service: Given[Service], policies: Reloader) -> Response[str]:
        """Put an earlier version into force again, as the form on the page asks."""
        require_operator(access, request)
        who = _who(access, request)
        form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
        seen = form.get("seen", "")
        _same_site(request)
        given = form.get("token", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, token_of(who, seen, service.secret).encode()):
            raise PermissionDenied("this form is not from our page, or is out of date: open /ops/policies again")
        if not form.get("hash"):
            raise InvalidRequest("hash: which version to put into force", param="hash")
        try:
            made = await policies.rollback(
                form["hash"], actor=who.name, reason=form.get("reason", "")[:1000], expected=seen
            )
        except ApiError as error:
            page = await _policies(who, service, policies, "", refused=error.message)
            return Response(page, status_code=error.status, headers=_HEADERS)
        page = await _policies(who, service, policies, "", done=f"{made.hash} is in force again")
        return Response(page, headers=_HEADERS)


def token_of(who: Identity, seen: str, secret: bytes) -> str:
    """Return the token of one operator's form while one policy is in force."""
    text = f"rollback\0{who.key_id}\0{seen}".encode("utf-8", "surrogatepass")
    return blake2b(text, key=secret, digest_size=16).hexdigest()


async def _policies(
    who: Identity, service: Service, policies: PolicyReloader, compare: str, *, done: str = "", refused: str = ""
) -> str:
    held = policies.held.policy
    compared = None
    if compare and (found := await policies.version(compare)) is not None:
        other = await policies.read(found[2], f"version {found[0]}")
        compared = Compared(found[0], found[2], [str(change) for change in diff(held, other)])
    elif compare:
        refused = f"no policy version {compare!r}"
    token = token_of(who, held.hash, service.secret)
    return policies_page(held.hash, await policies.history(), compared, token, done=done, refused=refused)


def _who(access: Access, request: Req) -> Identity:
    return access.operator(bearer_of(request.headers))


def _same_site(request: Req) -> None:
    """Refuse what a browser says comes from another site. Raises PermissionDenied."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    if site not in ("same-origin", "none") or (origin is not None and origin.partition("://")[2] != host):
        raise PermissionDenied("a change must come from our own page")
