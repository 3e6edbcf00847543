"""The composition root: `create_app` wires every part, the lifespan owns what must be started and closed.

Called by `breakeven gateway` and by tests, which replace parts by keyword.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from litestar import Litestar, asgi
from litestar.di import Provide
from litestar.types import HTTPScope, Receive, Send

from gateway.access import Access
from gateway.api.chat import GenerateEndpoint
from gateway.api.errors import framework_handler
from gateway.api.health import HealthController
from gateway.api.incoming import RequestIds
from gateway.api.models import ModelsController
from gateway.backends import Backend
from gateway.backends.make import make_backend
from gateway.classify import Classifier
from gateway.metrics import Metrics
from gateway.policy import Policy, load_policy
from gateway.routing import decide
from gateway.routing.snapshot import Snapshot, empty_snapshot
from gateway.serve import Decide, RecordSink, Service
from gateway.settings import Settings
from gateway.types import BackendState


class Parts:
    """Everything that lives as long as the application."""

    def __init__(self, settings: Settings, *, policy: Policy, backends: Mapping[str, Backend], access: Access) -> None:
        self.settings = settings
        self.active = policy
        self.backends = dict(backends)
        self.access = access

    def states(self) -> list[BackendState]:
        """Return the state of every backend."""
        return [backend.state() for backend in self.backends.values()]

    def stores(self) -> dict[str, Any]:
        """Return what the stores say."""
        return {}

    def policy(self) -> dict[str, Any]:
        """Return the active policy."""
        return {"hash": self.active.hash, "name": self.active.name}


def create_app(
    settings: Settings,
    *,
    policy: Policy | None = None,
    backends: Mapping[str, Backend] | None = None,
    classifier: Classifier | None = None,
    access: Access | None = None,
    decision: Decide = decide,
    snapshot: Callable[[], Snapshot] | None = None,
    sinks: tuple[RecordSink, ...] = (),
) -> Litestar:
    """Build the application. Every keyword replaces a part that is otherwise made from the settings.

    Raises:
        PolicyError: the policy file cannot be used.
    """
    env = {**os.environ, "BREAKEVEN_ENGINE_URL": settings.backends.engine_url}
    policy = policy or load_policy(settings.policy.path, env=env)
    secret = load_secret(settings.server.data_dir)
    if backends is None:
        how = settings.backends
        made = partial(make_backend, token=how.engine_token, keepalive=how.keepalive_s, poll=how.poll_s, secret=secret)
        backends = {config.name: made(config) for config in policy.backends}
    parts = Parts(settings, policy=policy, backends=backends, access=access or Access(host=settings.server.host))
    metrics = Metrics(parts.states)
    loaded = classifier or Classifier.load(settings.policy.classifier)
    nothing = empty_snapshot()
    service = Service(
        classifier=lambda: loaded,
        policy=lambda: parts.active,
        decide=decision,
        snapshot=snapshot or (lambda: nothing),
        backends=lambda: parts.backends,
        sinks=(metrics, *sinks),
        secret=secret,
    )
    return _litestar(settings, parts, service, metrics)


def _litestar(settings: Settings, parts: Parts, service: Service, metrics: Metrics) -> Litestar:
    """Build the routes."""
    ids = RequestIds()
    limit = settings.server.max_body_bytes
    chat = GenerateEndpoint("chat", service, parts.access, ids, limit)
    completions = GenerateEndpoint("completions", service, parts.access, ids, limit)
    started = int(time.time())

    @asgi("/v1/chat/completions", copy_scope=False)
    async def chat_route(scope: HTTPScope, receive: Receive, send: Send) -> None:
        await chat(scope, receive, send)

    @asgi("/v1/completions", copy_scope=False)
    async def completions_route(scope: HTTPScope, receive: Receive, send: Send) -> None:
        await completions(scope, receive, send)

    def given(value: object) -> Provide:
        return Provide(lambda: value, sync_to_thread=False, use_cache=True)

    @contextlib.asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with running(parts):
            yield

    return Litestar(
        [chat_route, completions_route, ModelsController, HealthController],
        dependencies={
            "access": given(parts.access),
            "states": given(parts.states),
            "health": given(parts),
            "page": given(metrics.page),
            "started": given(started),
        },
        exception_handlers={Exception: framework_handler},
        lifespan=[lifespan],
        openapi_config=None,
        logging_config=None,
    )


@contextlib.asynccontextmanager
async def running(parts: Parts) -> AsyncIterator[None]:
    """Start what runs in the background, in order of need; close it in reverse."""
    async with contextlib.AsyncExitStack() as stack:
        await parts.access.start()
        stack.push_async_callback(parts.access.aclose)
        for backend in parts.backends.values():
            await backend.start()
            stack.push_async_callback(backend.aclose)
        yield


def load_secret(data_dir: Path) -> bytes:
    """Return the key of all keyed hashes, made once per data folder: conversations keep their hash over restarts."""
    path = data_dir / "secret"
    with contextlib.suppress(OSError):
        found = path.read_bytes()
        if len(found) == 32:
            return found
    secret = secrets.token_bytes(32)
    with contextlib.suppress(OSError):
        data_dir.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(secret)
    return secret
