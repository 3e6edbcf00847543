"""Every error as OpenAI's object with all four fields, the framework's own included. Used by app and answers."""

from __future__ import annotations

import logging
import math
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from engine.errors import EngineDead, EngineError, QueueFull, RequestRejected

log = logging.getLogger(__name__)
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 503: "service_unavailable"}


class ErrorDetail(msgspec.Struct):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class Unauthorized(Exception):
    """The engine's token is missing or wrong."""


def detail(message: str, status: int, *, param: str | None = None, code: str | None = None) -> ErrorBody:
    """Return the error object that belongs to an HTTP status."""
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return ErrorBody(ErrorDetail(message, kind, param, code))


def describe(error: Exception) -> tuple[int, ErrorBody, dict[str, str]]:
    """Return status, body and headers for an exception: the one table from errors to HTTP."""
    if isinstance(error, RequestRejected):
        return error.status, detail(error.message, error.status, param=error.param, code=error.code), {}
    if isinstance(error, QueueFull):
        body = detail(f"the engine is full: {error}", 503, code="queue_full")
        return 503, body, {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    if isinstance(error, EngineError):
        code = "engine_dead" if isinstance(error, EngineDead) else "engine_error"
        return 503, detail(str(error), 503, code=code), {}
    if isinstance(error, Unauthorized):
        return 401, detail(str(error), 401, code="invalid_api_key"), {"www-authenticate": "Bearer"}
    if isinstance(error, HTTPException):
        known = {413: "request_too_large", 404: "not_found", 405: "method_not_allowed"}
        body = detail(error.detail, error.status_code, code=known.get(error.status_code))
        return error.status_code, body, dict(error.headers or {})
    log.error("unexpected error", exc_info=error)
    return 500, detail("internal error of the engine; its log has the details", 500, code="internal_error"), {}


def handle(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorBody]:
    """Litestar's exception handler for everything."""
    status, body, headers = describe(error)
    if isinstance(error, NotFoundException):
        body.error.message = f"no such route: {request.method} {request.url.path}"
    elif isinstance(error, MethodNotAllowedException):
        body.error.message = f"{request.method} is not allowed on {request.url.path}"
    return Response(body, status_code=status, headers=headers, media_type="application/json")
