"""Errors of the gateway. None knows HTTP framework types; `gateway/api/errors.py` turns them into OpenAI's object.

BreakevenError
├── ApiError              has an HTTP status and OpenAI's four fields
│   ├── InvalidRequest        400
│   ├── AuthenticationFailed  401
│   ├── PermissionDenied      403
│   ├── NotFound              404
│   ├── Conflict              409
│   ├── RateLimited           429 (+ Retry-After)
│   └── Unavailable           503 (+ Retry-After)
├── UpstreamError         a backend answered with an error of its own: forwarded as it is
├── BackendUnreachable    no answer from a backend before the first byte
├── PolicyError           a policy file is wrong: carries `FILE:LINE:COL: …` diagnostics
├── ArtefactError         a classifier artefact, taxonomy or label file is wrong
├── SettingsError         an environment variable or option is malformed: stops start-up
├── StoreUnavailable      Redis or the database did not answer; never fails a request
└── StoreRefused          a store answered, and will never take this value
"""

from __future__ import annotations

from collections.abc import Mapping


class BreakevenError(Exception):
    """Base of all errors raised by the gateway."""


class ApiError(BreakevenError):
    """An error for the client, in OpenAI's form: message, type, param and code."""

    status = 500
    type = "api_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


class InvalidRequest(ApiError):
    """The request is malformed: `param` names the field."""

    status = 400
    type = "invalid_request_error"


class AuthenticationFailed(ApiError):
    """No key, an unknown key or a revoked one."""

    status = 401
    type = "authentication_error"


class PermissionDenied(ApiError):
    """The key's role does not allow this."""

    status = 403
    type = "permission_error"


class NotFound(ApiError):
    """Unknown model or route."""

    status = 404
    type = "invalid_request_error"


class Conflict(ApiError):
    """Someone else changed it in between."""

    status = 409
    type = "conflict_error"


class RateLimited(ApiError):
    """Over the key's requests or tokens per minute."""

    status = 429
    type = "rate_limit_error"


class Unavailable(ApiError):
    """No arm can answer, or the queue is full."""

    status = 503
    type = "service_unavailable"


class UpstreamError(BreakevenError):
    """A backend answered with an HTTP error before the first byte; body and status are forwarded."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(f"backend answered {status}")
        self.status = status
        self.body = body
        self.headers = dict(headers)


class BackendUnreachable(BreakevenError):
    """No answer from a backend before the first byte."""


class PolicyError(BreakevenError):
    """A policy cannot be used; `diagnostics` are lines of the form `FILE:LINE:COL: error: …`."""

    def __init__(self, diagnostics: list[str]) -> None:
        super().__init__("\n".join(diagnostics))
        self.diagnostics = diagnostics


class ArtefactError(BreakevenError):
    """A classifier artefact, its taxonomy or its training data cannot be used; the message names the file and field."""


class SettingsError(BreakevenError):
    """An environment variable or option is malformed."""


class StoreUnavailable(BreakevenError):
    """Redis or the database did not answer."""


class StoreRefused(BreakevenError):
    """A store answered, and will never take this value: trying again is useless."""
