"""The composition root: `create_app` wires every part, the lifespan owns what must be started and closed.

Called by `breakeven gateway` and by tests, which replace parts by keyword.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Litestar

from gateway.access import Access
from gateway.api.routes import Wiring, make_litestar
from gateway.backends import Backend
from gateway.backends.make import make_backend
from gateway.classify import Classifier
from gateway.errors import SettingsError
from gateway.fingerprint import secret_of
from gateway.generations import Generation, Generations
from gateway.lossless.auditor import Auditor
from gateway.metrics import Metrics
from gateway.policy import Policy
from gateway.policy.source import PolicyFile
from gateway.policy_reload import PolicyReloader
from gateway.refresh import Refresher
from gateway.routing import Snapshot, decide, thresholds_of
from gateway.seams import Decide, RecordSink
from gateway.serve import Service
from gateway.settings import DEFAULT_POLICY, Settings
from gateway.stats.policy import PolicyChannel
from gateway.stores import Stores
from gateway.telemetry import TracedService
from gateway.types import BackendState

if TYPE_CHECKING:
    from gateway.telemetry_export import OtlpExporter


class Parts:
    """Everything that lives as long as the application."""

    def __init__(self, stores: Stores, generations: Generations, policies: PolicyReloader, access: Access) -> None:
        self.stores = stores
        self.generations = generations
        self.policies = policies
        self.access = access
        self.exporter: OtlpExporter | None = None
        """Where spans and metrics go besides `/metrics`."""
        self.auditor = Auditor(stores.database)
        self.metrics = Metrics(
            self.states, policy=lambda: self.policies.held, audits=self.auditor.counts, stores=self.store_states
        )
        self.refresher = Refresher(
            backends=lambda: self.generations.current.backends,
            store=stores.stats,
            database=stores.database,
            policy=lambda: self.generations.current.policy.hash,
            thresholds=lambda: thresholds_of(self.generations.current.policy.rules),
        )

    def states(self) -> list[BackendState]:
        """Return the state of every backend."""
        return [backend.state() for backend in self.generations.current.backends.values()]

    def store_states(self) -> dict[str, Any]:
        """Return what `/readyz` tells of the stores."""
        audits = {"audits": msgspec.to_builtins(self.auditor.state())}
        return {**msgspec.to_builtins(self.refresher.stats_state()), **self.stores.state(), **audits}

    def policy_state(self) -> dict[str, Any]:
        """Return what `/readyz` tells of the policy."""
        return self.policies.held.describe()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start what works in the background, in order of need; close it in reverse."""
        async with contextlib.AsyncExitStack() as stack:
            if self.exporter is not None:
                stack.push_async_callback(asyncio.to_thread, self.exporter.close)
            stack.push_async_callback(self.stores.aclose)
            await self.stores.start()
            stack.push_async_callback(self.access.aclose)
            await self.access.start()
            stack.push_async_callback(self.generations.aclose)
            await self.generations.start()
            stack.push_async_callback(self.auditor.aclose)
            await self.auditor.start()
            stack.push_async_callback(self.policies.aclose)
            await self.policies.start()
            await self.refresher.start()
            stack.push_async_callback(self.refresher.aclose)
            yield


def create_app(
    settings: Settings,
    *,
    policy: Policy | None = None,
    backends: Mapping[str, Backend] | None = None,
    classifier: Classifier | None = None,
    decision: Decide = decide,
    snapshot: Callable[[], Snapshot] | None = None,
    sinks: tuple[RecordSink, ...] = (),
) -> Litestar:
    """Build the application. Every keyword replaces a part that is otherwise made from the settings; `sinks` add to it.

    Raises:
        PolicyError: the policy file cannot be used.
        ArtefactError: the classifier's artefact cannot be used.
    """
    env = {**os.environ, "BREAKEVEN_ENGINE_URL": settings.backends.engine_url}
    file = None
    if policy is None:
        file = PolicyFile(settings.policy.path, env=env, shipped=settings.policy.path == DEFAULT_POLICY)
        policy = file.load()
    secret = load_secret(settings.server.data_dir, settings.server.secret)
    how = settings.backends
    made = partial(make_backend, token=how.engine_token, keepalive=how.keepalive_s, poll=how.poll_s, secret=secret)
    load = partial(_load_classifier, settings.policy.classifier)
    first = Generation(
        policy,
        {config.name: made(config) for config in policy.backends} if backends is None else dict(backends),
        load(policy.classifier.artefact) if classifier is None else classifier,
    )
    stores = Stores(settings)
    generations = Generations(first, make=made, load=load)
    channel = PolicyChannel(settings.stores.redis_url) if settings.stores.redis_url else None
    policies = PolicyReloader(generations, file=file, database=stores.database, channel=channel, env=env)
    parts = Parts(stores, generations, policies, _access(settings, stores))
    parts.exporter = exporter = _exporter(settings.telemetry.otlp_endpoint)
    service = (Service if exporter is None else partial(TracedService, exporter))(
        generation=lambda: generations.current,
        decide=decision,
        snapshot=snapshot or (lambda: parts.refresher.snapshot),
        sinks=(stores.recorder, parts.metrics, *sinks),
        texts=stores.texts,
        audits=parts.auditor,
        secret=secret,
    )
    return make_litestar(
        Wiring(
            service=service,
            access=parts.access,
            health=parts,
            database=stores.database,
            refresher=parts.refresher,
            policies=policies,
            metrics=parts.metrics.page,
            max_body_bytes=settings.server.max_body_bytes,
            running=parts.running,
        )
    )


def _exporter(endpoint: str) -> OtlpExporter | None:
    """Return what sends spans and metrics to a collector, None without one. Raises SettingsError without the extra."""
    if not endpoint:
        return None
    try:
        from gateway.telemetry_export import OtlpExporter  # noqa: PLC0415  # only with the extra
    except ModuleNotFoundError as error:
        what = "BREAKEVEN_OTLP_ENDPOINT needs the extra: pip install 'breakeven[telemetry]'"
        raise SettingsError(f"{what} ({error.name} is missing)") from error
    return OtlpExporter(endpoint)


def _load_classifier(override: Path | None, artefact: str | None) -> Classifier:
    path = override or artefact
    return Classifier.load(Path(path) if path else None)


def _access(settings: Settings, stores: Stores) -> Access:
    limits = settings.limits
    return Access(
        host=settings.server.host,
        load=stores.database.list_keys,
        limiter=stores.limiter,
        defaults=(limits.requests_per_minute, limits.tokens_per_minute),
        cache=settings.server.data_dir / "keys.json",
    )


def load_secret(data_dir: Path, given: str = "") -> bytes:
    """Return the key of all keyed hashes: that of the settings, else one made once per data folder.

    Conversations and end users keep their hash over restarts; gateways of one fleet must be given the same key.
    """
    if given:
        return secret_of(given)
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
