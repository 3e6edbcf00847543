"""`/ops`: the operations page, its live events and the same figures as files. Needs the operator role.

A browser signs in with HTTP Basic: any user name, an operator's API key as the password.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from litestar import Controller, Request, Response, get
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery
from litestar.response import Stream

from gateway.access import Access
from gateway.api.given import Given
from gateway.errors import ApiError, AuthenticationFailed, NotFound, StoreUnavailable
from gateway.ops import render
from gateway.ops.live import LiveReports
from gateway.ops.window import parse_window, window_name

Req = Request[Any, Any, State]
Keys = Given[Access]
Live = Given[LiveReports]
Since = FromQuery[str]
_POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'"
HEADERS = {
    "content-security-policy": f"{_POLICY}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_STATIC = {
    "ops.css": ("ops.css", "text/css"),
    "ops.js": ("ops.js", "text/javascript"),
    "charts.js": ("charts.js", "text/javascript"),
    "uPlot.js": ("vendor/uPlot.js", "text/javascript"),
    "uPlot.css": ("vendor/uPlot.css", "text/css"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Name in the address, file, type."""
_STANDALONE = {**HEADERS, "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:"}


_REPORTS = {
    **HEADERS,
    "content-security-policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self'",
}
"""Plots carry their style with them; there is no script on this page."""


def require_operator(access: Access, request: Req) -> None:
    """Let operators in; ask a browser for the key.

    Raises:
        AuthenticationFailed: no valid key.
        PermissionDenied: an application's key.
    """
    try:
        access.operator(bearer_of(request.headers))
    except AuthenticationFailed as error:
        if "text/html" in request.headers.get("accept", ""):
            error.headers["www-authenticate"] = 'Basic realm="Breakeven operator key", charset="UTF-8"'
        raise


def bearer_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with a Basic password turned into a bearer token; anything else stays as it is."""
    given = dict(headers)
    scheme, _, value = given.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            _user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            password = ""
        given["authorization"] = f"Bearer {password}"
    return given


def ended_of(access: Access, headers: Mapping[str, str], draining: Callable[[], bool]) -> Callable[[], bool]:
    """Return what tells whether a stream of events is over: the server stops, or the key is no operator's any more."""
    own = bearer_of(headers)

    def ended() -> bool:
        try:
            access.operator(own)
        except ApiError:
            return True
        return draining()

    return ended


class OpsController(Controller):
    """The page and its data."""

    path = "/ops"

    @get("/", media_type="text/html")
    async def page(self, request: Req, access: Keys, ops: Live, since: Since = "1h") -> Response[str]:
        """Show the page, rendered."""
        require_operator(access, request)
        report = await ops.report(parse_window(since))
        return Response(render.to_page(report), headers=HEADERS)

    @get("/events")
    async def events(self, request: Req, access: Keys, ops: Live, since: Since = "1h") -> Stream:
        """Send the page's changing part whenever it changes."""
        require_operator(access, request)
        ended = ended_of(access, request.headers, request.app.state.get("draining", bool))
        events = ops.events(parse_window(since), ended)
        return Stream(events, media_type="text/event-stream", headers={**HEADERS, "x-accel-buffering": "no"})

    @get("/series.json", media_type="application/json")
    async def series(self, request: Req, access: Keys, ops: Live, since: Since = "1h") -> Response[bytes]:
        """Return the charts of a window."""
        require_operator(access, request)
        return Response(await ops.series(parse_window(since)), headers=HEADERS)

    @get("/report.json", media_type="application/json")
    async def json(self, request: Req, access: Keys, ops: Live, since: Since = "7d") -> Response[bytes]:
        """Return the report for scripts."""
        require_operator(access, request)
        return Response(render.to_json(await ops.study(parse_window(since))), headers=HEADERS)

    @get("/report.csv", media_type="text/csv")
    async def csv(self, request: Req, access: Keys, ops: Live, since: Since = "7d") -> Response[str]:
        """Return the report for a spreadsheet."""
        require_operator(access, request)
        return Response(render.to_csv(await ops.study(parse_window(since))), headers=HEADERS)

    @get("/report.html", media_type="text/html")
    async def html(self, request: Req, access: Keys, ops: Live, since: Since = "7d") -> Response[str]:
        """Return the report as one file to keep or to send."""
        require_operator(access, request)
        report = await ops.study(parse_window(since))
        page = await asyncio.to_thread(render.to_page, report, standalone=True)
        return Response(page, headers=_STANDALONE)

    @get("/report.pdf", media_type="application/pdf")
    async def pdf(self, request: Req, access: Keys, ops: Live, since: Since = "7d") -> Response[bytes]:
        """Return the report for a meeting."""
        require_operator(access, request)
        report = await ops.study(parse_window(since))
        if report.study is None:
            raise StoreUnavailable(report.source)
        named = {"content-disposition": f'attachment; filename="breakeven-{window_name(report.since_s)}.pdf"'}
        return Response(await asyncio.to_thread(render.to_pdf, report), headers={**HEADERS, **named})

    @get("/report.txt", media_type="text/plain")
    async def text(self, request: Req, access: Keys, ops: Live, since: Since = "7d") -> Response[str]:
        """Return the report for a mail."""
        require_operator(access, request)
        return Response(render.to_text(await ops.study(parse_window(since))), headers=HEADERS)

    @get("/reports", media_type="text/html")
    async def reports(self, request: Req, access: Keys, ops: Live, since: Since = "7d") -> Response[str]:
        """Show the report, with every other form and window one click away."""
        require_operator(access, request)
        report = await ops.study(parse_window(since))
        page = await asyncio.to_thread(render.to_page, report, reports=True)
        return Response(page, headers=_REPORTS)

    @get("/static/{name:str}", sync_to_thread=False)
    def static(self, name: FromPath[str]) -> Response[bytes]:
        """Return one of the page's own files; there is nothing secret in them."""
        if name not in _STATIC:
            raise NotFound(f"no such file: {name}")
        path, kind = _STATIC[name]
        headers = {**HEADERS, "cache-control": "max-age=300"}
        return Response(render.static_file(path), media_type=kind, headers=headers)
