"""Talks to a running gateway's policy API; errors become one line for the terminal. Standard library only."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

import click

TIMEOUT_S = 15.0


class Answer(NamedTuple):
    """A successful response."""

    body: bytes
    etag: str

    def json(self) -> Any:  # noqa: ANN401  # whatever JSON holds
        """Return the decoded body."""
        return json.loads(self.body)


def remote_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --url and --api-key."""
    command = click.option("--api-key", help="Operator key (BREAKEVEN_API_KEY).")(command)
    return click.option("--url", help="A running gateway, such as http://127.0.0.1:8000.")(command)


class Remote:
    """One gateway."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise click.BadParameter(f"expected http://… or https://…, found {url!r}", param_hint="--url")
        self._url = url.rstrip("/").removesuffix("/v1")
        self._key = api_key or os.environ.get("BREAKEVEN_API_KEY", "")

    def call(self, method: str, path: str, body: Any = None, *, if_match: str | None = None) -> Answer:  # noqa: ANN401
        """Send a request with a JSON body. Raises ClickException with the server's words."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if data is not None else {}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        if if_match is not None:
            headers["if-match"] = if_match if if_match == "*" else f'"{if_match}"'
        request = urllib.request.Request(self._url + path, data=data, headers=headers, method=method)  # noqa: S310  # scheme checked above
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310  # as above
                return Answer(response.read(), response.headers.get("etag", "").strip('"'))
        except urllib.error.HTTPError as error:
            raise click.ClickException(_words(error)) from error
        except (urllib.error.URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise click.ClickException(f"no answer from {self._url}: {reason}") from error


def _words(error: urllib.error.HTTPError) -> str:
    """Return what the server says about its refusal."""
    raw = error.read()
    try:
        message = json.loads(raw)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = raw[:300].decode("utf-8", "replace")
    return f"{error.code}: {message}"
