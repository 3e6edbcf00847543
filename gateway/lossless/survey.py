"""Looks at one server that a policy names: which engine and version it is, what will be measured there and what not.

For `breakeven backends check`. Asks only for small documents; generates nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from gateway.backends.base import Backend
from gateway.backends.http import HttpBackend
from gateway.backends.prometheus import read_metrics
from gateway.errors import BreakevenError
from gateway.types import Arm

_LOOK_S = 0.05
VERSIONS = (
    ("engine", "/v1/engine/info", "version"),
    ("sglang", "/get_server_info", "version"),
    ("sglang", "/server_info", "version"),
    ("llamacpp", "/props", "build_info"),
    ("vllm", "/version", "version"),
)
"""Engine, document and field by which a server tells its version; the first that answers so counts."""
NAMES = {"engine": "Breakeven's engine", "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
_ROUNDS = {"vllm": "vllm:spec_decode_num_drafts_total", "llamacpp": "llamacpp:spec_decode_num_drafts_total"}
_METRICS_HINT = {"llamacpp": "start llama-server with --metrics", "sglang": "start SGLang with --enable-metrics"}


class Server(msgspec.Struct):
    """One server as it was found."""

    backend: str
    url: str
    kind: str
    """As the policy says."""
    reachable: bool = False
    detail: str = ""
    """Why it is not reachable."""
    engine: str = ""
    """Which engine answers there; empty where it does not say."""
    version: str = ""
    model: str = ""
    window: int | None = None
    dtype: str = ""
    draft: str = ""
    arms: list[str] = msgspec.field(default_factory=list)
    measured: list[str] = msgspec.field(default_factory=list)
    not_measured: list[str] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)


async def survey(backend: Backend, url: str, kind: str, patience_s: float) -> Server:
    """Return what is found at a server, `backend` being its started adapter. Never raises for a server's faults."""
    found = Server(backend.name, url, kind)
    until = time.monotonic() + patience_s
    while not backend.state().healthy and time.monotonic() < until:  # noqa: ASYNC110  # known by looking only
        await asyncio.sleep(_LOOK_S)
    state = backend.state()
    found.reachable, found.detail = state.healthy, state.detail
    if not isinstance(backend, HttpBackend) or not state.healthy:
        return found
    if state.images is not None:
        found.measured.append(f"images: {'seen' if state.images else 'not seen, requests with some go elsewhere'}")
    found.model, found.window, found.draft = state.model, state.max_model_len, state.draft
    found.arms = [str(arm) for arm in state.arms]
    await _identify(backend, found)
    await _look_at_measures(backend, found, state.arms)
    if state.detail:
        found.warnings.append(state.detail)
    if found.engine and found.engine != NAMES.get(kind):
        right = next(name for name, title in NAMES.items() if title == found.engine)
        found.warnings.append(f"the policy says kind: {kind}, but {found.engine} answers there: use kind: {right}")
    return found


async def _identify(backend: HttpBackend, found: Server) -> None:
    """Find engine and version by the documents that only one engine has."""
    for engine, path, field in VERSIONS:
        document = await _document(backend, path)
        version = str(document.get(field) or "")
        if version:
            found.engine, found.version = NAMES[engine], version
            found.dtype = str(document.get("dtype") or "") if engine in ("engine", "sglang") else ""
            return
    found.version = backend.version


async def _document(backend: HttpBackend, path: str) -> dict[str, Any]:
    """Return a JSON object, an empty one where the server has none there."""
    try:
        document = msgspec.json.decode(await backend.client.get(path))
    except (BreakevenError, msgspec.DecodeError):
        return {}
    return document if isinstance(document, dict) else {}


async def _look_at_measures(backend: HttpBackend, found: Server, arms: tuple[Arm, ...]) -> None:
    """Say what the adapter will read there, as far as documents tell; answers tell the rest (`note_acceptance`)."""
    found.measured += ["time to first token, between events and per token", "requests in flight of this gateway"]
    if found.kind == "engine":
        found.measured += ["cost of steps by load, context and draft length (α and β apart)", "load, cache in use"]
        found.measured.append("process start, engine version and draft (replica epoch)")
        return
    found.not_measured.append("cost of steps: only the sum α + β can be told, from time per token")
    samples = await _samples(backend)
    running = getattr(backend, "running_metric", "")
    if running and running in samples:
        found.measured.append("load: running and waiting sequences")
    else:
        hint = _METRICS_HINT.get(found.kind, "its metrics page is away" if running else "no metrics are read here")
        found.measured.append("load: requests in flight of all gateways that share a Redis")
        found.not_measured.append(f"load by other clients ({hint})")
    if backend.start_known:
        found.measured.append("process start, engine version and draft (replica epoch)")
    else:
        found.not_measured.append("restarts: a new process is not told from the old one")
    rounds = _ROUNDS.get(found.kind)
    if rounds and any(arm.k for arm in arms):
        into = found.measured if rounds in samples else found.not_measured
        into.append("totals of speculation over all requests")


async def _samples(backend: HttpBackend) -> dict[str, float]:
    try:
        return read_metrics((await backend.client.get("/metrics")).decode("utf-8", "replace"))
    except BreakevenError:
        return {}
