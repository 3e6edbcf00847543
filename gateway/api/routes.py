"""All routes in one Litestar application; called by `gateway/app.py` with the parts that they need."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.enums import ScopeType
from litestar.types import HTTPScope, LifeSpanScope, Scope

from gateway.access import Access
from gateway.api.chat import GenerateEndpoint
from gateway.api.classify import ClassifyController
from gateway.api.errors import framework_handler
from gateway.api.health import Health, HealthController
from gateway.api.incoming import RequestIds, with_request_id
from gateway.api.keys import KeysController
from gateway.api.models import ModelsController
from gateway.api.ops import OpsController
from gateway.api.ops_pages import OpsPagesController
from gateway.api.policy import PolicyController
from gateway.db import Database
from gateway.ops.collect import OpsReader
from gateway.ops.live import LiveReports
from gateway.policy_reload import PolicyReloader
from gateway.refresh import Refresher
from gateway.serve import Service
from gateway.types import Endpoint

GENERATING: dict[str, Endpoint] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
"""The routes that take nearly all requests."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the handlers are given."""

    service: Service
    access: Access
    health: Health
    database: Database
    refresher: Refresher
    policies: PolicyReloader
    metrics: Callable[[], bytes]
    max_body_bytes: int
    running: Callable[[], AbstractAsyncContextManager[None]]


class GatewayApp(Litestar):
    """The application; the two generating endpoints come before the framework's routing and wrappers."""

    __slots__ = ("direct",)
    direct: dict[str, GenerateEndpoint]

    async def __call__(self, scope: Scope | LifeSpanScope, receive: Any, send: Any) -> None:  # noqa: ANN401  # ASGI
        """Answer one ASGI connection."""
        if scope["type"] == ScopeType.HTTP:
            request = cast("HTTPScope", scope)
            endpoint = self.direct.get(request["path"])
            if endpoint is not None:
                await endpoint(request, receive, send)
                return
        await super().__call__(scope, receive, send)


def make_litestar(wiring: Wiring) -> Litestar:
    """Build the application."""
    ids = RequestIds()
    service, access, health = wiring.service, wiring.access, wiring.health
    reader = OpsReader(
        wiring.database,
        snapshot=service.snapshot,
        states=health.states,
        stores=health.store_states,
        policy=health.policy_state,
    )

    def given(value: object) -> Provide:
        return Provide(lambda: value, sync_to_thread=False, use_cache=True)

    @contextlib.asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with wiring.running():
            yield

    controllers = [
        ModelsController,
        HealthController,
        ClassifyController,
        KeysController,
        OpsController,
        OpsPagesController,
        PolicyController,
    ]
    app = GatewayApp(
        [Router("/", route_handlers=controllers, middleware=[with_request_id])],
        dependencies={
            "access": given(access),
            "service": given(service),
            "states": given(health.states),
            "health": given(health),
            "page": given(wiring.metrics),
            "started": given(int(time.time())),
            "database": given(wiring.database),
            "refresher": given(wiring.refresher),
            "policies": given(wiring.policies),
            "ops": given(LiveReports(reader)),
        },
        exception_handlers={Exception: framework_handler},
        lifespan=[lifespan],
        openapi_config=None,
        logging_config=None,
        request_max_body_size=wiring.max_body_bytes,
    )
    app.direct = {
        path: GenerateEndpoint(endpoint, service, access, ids, wiring.max_body_bytes)
        for path, endpoint in GENERATING.items()
    }
    return app
