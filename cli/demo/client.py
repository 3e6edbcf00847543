"""One request of the demo: sent, timed at this end, with what the response's `metrics` say. Called by `runner`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from engine.messages import EngineMetrics


class DemoError(Exception):
    """The demo cannot go on; the message says what to do."""


@dataclass(slots=True)
class Sample:
    """What one answered request showed. Seconds."""

    prompt: str
    task: str
    concurrency: int
    path: str
    """The path really taken, from the response's headers."""
    arm: str
    reason: str
    taken_for: str
    """The task that the gateway took it for."""
    tokens: int
    ttft_s: float
    tpot_s: float | None
    """(last − first)/(n − 1), measured by this client; None below two tokens."""
    metrics: EngineMetrics | None


class _Timing:
    """First and last arrival of text in a stream."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.first: float | None = None
        self.last = self.start

    def text_arrived(self) -> None:
        self.last = time.perf_counter()
        if self.first is None:
            self.first = self.last

    def tpot(self, tokens: int) -> float | None:
        if self.first is None or tokens < 2:
            return None
        return (self.last - self.first) / (tokens - 1)


def normalize_url(url: str) -> str:
    """Return the gateway's root: no trailing slash, no `/v1`. Raises DemoError where it is no HTTP address."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DemoError(f"--url {url!r}: expected an address such as http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


class Client:
    """A gateway at `url`, spoken to as an application would."""

    def __init__(self, session: aiohttp.ClientSession, url: str, api_key: str | None) -> None:
        self._session = session
        self.url = url
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    async def model(self, wait_s: float = 120.0) -> str:
        """Return the first model that the gateway serves, waiting while its engine still loads one.

        Raises DemoError saying how to start or reach a gateway.
        """
        deadline = time.monotonic() + wait_s
        while True:
            models = await self._models()
            if models:
                return str(models[0]["id"])
            if time.monotonic() > deadline:
                late = f"serves no model after {wait_s:.0f} s: see {self.url}/readyz"
                raise DemoError(f"The gateway at {self.url} {late}")
            await asyncio.sleep(0.5)

    async def _models(self) -> list[dict[str, Any]]:
        try:
            async with self._session.get(f"{self.url}/v1/models", headers=self._headers) as response:
                await self._check(response)
                found: list[dict[str, Any]] = (await response.json(content_type=None))["data"]
                return found
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise DemoError(
                f"No gateway answers at {self.url} ({_said(error)}).\n"
                "Start one with `make run` (or `breakeven serve`) in another terminal, or give its address with --url."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise DemoError(f"{self.url} answered, but not like an OpenAI-compatible server: {error!r}") from error

    async def send(
        self,
        body: dict[str, Any],
        *,
        prompt: str = "",
        task: str = "",
        concurrency: int = 1,
        wish: dict[str, str] | None = None,
    ) -> Sample:
        """Send one streamed chat request and read it to its end. Raises DemoError with the server's message."""
        headers = {**self._headers, "x-breakeven-debug": "1", **(wish or {})}
        timing = _Timing()
        tokens, metrics = 0, None
        try:
            async with self._session.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as response:
                await self._check(response)
                answered = response.headers
                async for event in _events(response):
                    if has_text(event):
                        timing.text_arrived()
                    usage = event.get("usage")
                    tokens = usage["completion_tokens"] if usage else tokens
                    if event.get("metrics"):
                        metrics = msgspec.convert(event["metrics"], EngineMetrics)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"{self.url} went away in the middle of a request ({_said(error)})") from error
        except msgspec.ValidationError as error:
            raise DemoError(f"{self.url}: the response's metrics have an unknown form: {error}") from error
        return Sample(
            prompt=prompt,
            task=task,
            concurrency=concurrency,
            path=answered.get("x-breakeven-path", ""),
            arm=answered.get("x-breakeven-arm", ""),
            reason=answered.get("x-breakeven-reason", ""),
            taken_for=answered.get("x-breakeven-task", ""),
            tokens=tokens,
            ttft_s=(timing.first or timing.last) - timing.start,
            tpot_s=timing.tpot(tokens),
            metrics=metrics,
        )

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raise DemoError where the answer is not a success."""
        if response.status < 400:
            return
        text = await response.text()
        try:
            message = str(msgspec.json.decode(text)["error"]["message"])
        except (msgspec.DecodeError, KeyError, TypeError):
            message = text[:300]
        hint = ""
        if response.status in (401, 403):
            hint = (
                "\nGive a key with --api-key or BREAKEVEN_API_KEY; `breakeven keys create --role operator` makes one."
            )
        raise DemoError(f"{self.url} answered {response.status}: {message}{hint}")


def _said(error: Exception) -> str:
    """Return an exception's message, or its name where it has none."""
    return str(error) or type(error).__name__


def has_text(event: dict[str, Any]) -> bool:
    """Whether a chunk carries generated text (the role chunk and the usage chunk carry none)."""
    return any((choice.get("delta") or {}).get("content") for choice in event.get("choices") or ())


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of a server-sent stream. Raises DemoError at an error event."""
    async for raw in response.content:
        line = raw.strip()
        if not line.startswith(b"data:") or line == b"data: [DONE]":
            continue
        event = msgspec.json.decode(line[5:])
        if event.get("error"):
            raise DemoError(f"the stream ended with an error: {event['error'].get('message', event['error'])}")
        yield event
