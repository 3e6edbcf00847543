"""From a policy's backend to its adapter; called by `gateway/app.py`."""

from __future__ import annotations

from gateway.backends.base import Backend, Target, Timeouts
from gateway.backends.engine import EngineBackend
from gateway.backends.generic import GenericBackend
from gateway.backends.llamacpp import LlamaCppBackend
from gateway.backends.pool import ReplicaPool
from gateway.backends.sglang import SglangBackend
from gateway.backends.vllm import VllmBackend
from gateway.policy.schema import BackendConfig, BackendKind

ADAPTERS: dict[BackendKind, type[EngineBackend | GenericBackend]] = {
    "engine": EngineBackend,
    "vllm": VllmBackend,
    "sglang": SglangBackend,
    "llamacpp": LlamaCppBackend,
    "openai": GenericBackend,
}


def make_backend(config: BackendConfig, *, token: str, keepalive: float, poll: float, secret: bytes) -> Backend:
    """Return the adapter for `config.kind`, or a pool of them, not started yet. `token` is what our engines expect."""
    ours = config.kind == "engine"
    targets = [
        Target(
            name=config.name,
            url=url,
            model=config.model or "",
            arms=() if config.arms == "auto" else config.arms,
            token=config.api_key or (token if ours else ""),
            timeouts=Timeouts(
                config.connect_timeout, config.first_token_timeout, config.token_timeout, keepalive, poll
            ),
            connection_limit=config.max_connections,
            secret=secret,
        )
        for url in config.urls
    ]
    replicas = [ADAPTERS[config.kind](target) for target in targets]
    return replicas[0] if len(replicas) == 1 else ReplicaPool(config.name, replicas)
