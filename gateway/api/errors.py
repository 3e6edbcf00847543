"""One table from errors to OpenAI's error object with all four fields; used by every endpoint and by the framework."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException

from gateway.api.incoming import request_id_of
from gateway.errors import (
    ApiError,
    BackendUnreachable,
    BreakevenError,
    InvalidRequest,
    PolicyError,
    StoreUnavailable,
    UpstreamError,
)

log = logging.getLogger(__name__)
_WINDOW = ("maximum context length", "context length", "exceeds the available context size", "context window")


class ErrorBody(msgspec.Struct):
    """OpenAI's error object; all four fields are always sent."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct):
    """An error ready to be sent."""

    status: int
    error: ErrorBody
    headers: dict[str, str] = {}

    @property
    def body(self) -> bytes:
        """The response body."""
        return msgspec.json.encode({"error": self.error})


_BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable",
    504: "service_unavailable",
}
_RETRY = {"retry-after": "1"}


_OURS: dict[type[BreakevenError], tuple[int, str | None, str]] = {
    BackendUnreachable: (503, None, "backend_unreachable"),
    StoreUnavailable: (503, None, "store_unavailable"),
    PolicyError: (400, "policy", "invalid_policy"),
}
"""Errors without a status of their own: status, param and code."""


def answer_to(error: BaseException, request_id: str = "") -> ErrorAnswer:
    """Translate any error. What is not known is logged with its traceback and told as a 500 without details."""
    if isinstance(error, ApiError):
        body = ErrorBody(error.message, error.type, error.param, error.code)
        return ErrorAnswer(error.status, body, error.headers)
    if isinstance(error, UpstreamError):
        return _forwarded(error)
    if isinstance(error, HTTPException):
        return _framework(error)
    for kind, (status, param, code) in _OURS.items():
        if isinstance(error, kind):
            body = ErrorBody(str(error), _BY_STATUS[status], param, code)
            return ErrorAnswer(status, body, _RETRY if status == 503 else {})
    log.error("unexpected error", exc_info=error, extra={"request_id": request_id})
    body = ErrorBody("internal error; the log of the gateway tells more", "api_error", None, "internal_error")
    return ErrorAnswer(500, body)


def wrong_method(method: str, allowed: str) -> InvalidRequest:
    """Return the error for a method that an endpoint does not have."""
    message = f"method {method} is not allowed here; use {allowed}"
    error = InvalidRequest(message, code="method_not_allowed", headers={"allow": allowed})
    error.status = 405
    return error


def _framework(error: HTTPException) -> ErrorAnswer:
    """Translate the framework's own errors (unknown route, wrong method, malformed parameters)."""
    status = error.status_code
    if status >= 500:
        log.error("error in a handler", exc_info=error)
    extra = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    param = extra.get("key") if isinstance(extra, Mapping) else None
    detail = str(extra.get("message", "")) if isinstance(extra, Mapping) else ""
    message = f"{error.detail}: {detail}" if detail else error.detail
    code = {404: "not_found", 405: "method_not_allowed"}.get(status)
    kind = _BY_STATUS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return ErrorAnswer(status, ErrorBody(message, kind, param, code), dict(error.headers or {}))


def _forwarded(error: UpstreamError) -> ErrorAnswer:
    """Pass a backend's error on: its status and words, with the four fields that clients rely on."""
    found = _error_object(error.body)
    message = found.get("message")
    text = message if isinstance(message, str) and message else f"the backend answered with status {error.status}"
    kind, param, code = found.get("type"), found.get("param"), found.get("code")
    if error.status == 400 and any(words in text.lower() for words in _WINDOW):
        code = "context_length_exceeded"
    status = error.status if error.status not in (401, 403) else 503  # the backend refused us, not the client
    body = ErrorBody(
        text,
        kind if isinstance(kind, str) and status == error.status else _BY_STATUS.get(status, "api_error"),
        param if isinstance(param, str) else None,
        code if isinstance(code, str) else None,
    )
    headers = dict(error.headers)
    if status in (429, 503):
        headers.setdefault("retry-after", "1")
    return ErrorAnswer(status, body, headers)


def _error_object(body: bytes) -> dict[str, Any]:
    """Find the error object in any form a server gives it: OpenAI's, vLLM's flat one, a framework's `detail`."""
    try:
        payload = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {"message": body.decode("utf-8", "replace")[:500]}
    if not isinstance(payload, dict):
        return {}
    inner = payload.get("error")
    if isinstance(inner, dict):
        return inner
    if isinstance(inner, str):
        return {"message": inner}
    if "detail" in payload and "message" not in payload:
        return {"message": str(payload["detail"])}
    return payload


def framework_handler(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler for everything that no endpoint of ours has caught."""
    answer = answer_to(error)
    headers = {**answer.headers, "x-request-id": request_id_of(request.headers.get("x-request-id"))}
    return Response(answer.body, status_code=answer.status, headers=headers, media_type=MediaType.JSON)
