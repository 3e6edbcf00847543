"""Errors of the engine.

EngineError
├── ModelError            the model, its files or its tokenizer cannot be used
│   ├── ModelDownloadError
│   └── TokenizerMismatchError
├── DistillError          a draft cannot be made, read or judged as asked
├── RequestRejected       this request cannot be served as asked (HTTP 4xx; carries OpenAI's fields)
├── QueueFull             too many waiting requests (HTTP 503 with Retry-After)
└── EngineDead            the step loop has ended and will not come back
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors raised by the engine."""


class ModelError(EngineError):
    """The model, its files or its tokenizer cannot be used."""


class ModelDownloadError(ModelError):
    """The model's files could not be fetched or do not match their hash."""


class TokenizerMismatchError(ModelError):
    """Target and draft do not share a vocabulary."""


class DistillError(EngineError):
    """A draft cannot be made, read or judged as asked; the message names the file or option at fault."""


class RequestRejected(EngineError):
    """This request cannot be served as asked.

    `param` is the field at fault, None where it is none. `code` is OpenAI's error code (`context_length_exceeded`, …),
    `invalid_value` where a field is at fault and nothing else is said.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or ("invalid_value" if param else None)
        self.status = status


class QueueFull(EngineError):
    """Too many waiting requests; `retry_after_s` says when to come back."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDead(EngineError):
    """The step loop has ended and will not come back."""
