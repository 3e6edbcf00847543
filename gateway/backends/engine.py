"""Our own engine: speculation chosen per request, statistics per response, costs read in the background."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from engine.messages import CostTable, EngineInfo
from gateway.backends.base import Target
from gateway.backends.http import HttpBackend
from gateway.backends.stats import engine_spec
from gateway.errors import BackendUnreachable, BreakevenError
from gateway.types import Arm, Decision, GenerateRequest, Spec

DRAFT_LENGTHS = (1, 2, 4, 8)
"""Offered for `arms: auto`."""
_COSTS_EVERY_S = 2.0


class EngineBackend(HttpBackend):
    """A process of `breakeven engine`."""

    kind = "engine"
    per_request_stats = True
    per_request_switch = True
    adaptive = True
    tells_load = True
    stripped = ("cache_salt",)

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._costs: CostTable | None = None
        self._costs_at = float("-inf")

    def costs(self) -> CostTable | None:
        """Return the last cost table read."""
        return self._costs

    async def probe(self) -> None:
        """Read what the process is, its load, and now and then its costs."""
        ours = self.in_flight
        try:
            info = msgspec.json.decode(await self.client.get("/v1/engine/info"), type=EngineInfo)
        except msgspec.MsgspecError as error:
            raise BackendUnreachable(f"{self.client.url} does not speak the engine's protocol: {error}") from error
        if info.epoch != self.epoch:
            self._costs, self._costs_at = None, float("-inf")
        self.epoch, self.version, self.draft = info.epoch, info.version, info.draft or ""
        self.model = self.target.model or info.model
        self.max_model_len = info.max_model_len
        self.has_tool_template = info.has_tool_template
        self.running_seen = max(0, info.running - ours)
        self.waiting = info.waiting
        self.kv_used = info.kv_tokens_used / info.kv_tokens_total if info.kv_tokens_total else None
        self.arms = _servable(self.target.arms, info) if self.target.arms else _all_arms(self.name, info)
        await self._read_costs()

    async def _read_costs(self) -> None:
        """Costs are a help, not a condition: an engine that cannot tell them yet still serves."""
        if time.monotonic() - self._costs_at < _COSTS_EVERY_S:
            return
        try:
            self._costs = msgspec.json.decode(await self.client.get("/v1/engine/costs"), type=CostTable)
            self._costs_at = time.monotonic()
        except (BreakevenError, msgspec.MsgspecError):
            return

    def fields(self, request: GenerateRequest, decision: Decision) -> dict[str, Any]:
        """Return the `speculation` that was decided, and the salt that keeps the keys' prefix caches apart."""
        return {
            "speculation": decision.speculation or {"method": decision.arm.method, "k": decision.arm.k},
            "cache_salt": self.target.cache_salt(request.identity.key_id),
        }

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read acceptance and cost of one response."""
        return engine_spec(payload)


def _all_arms(name: str, info: EngineInfo) -> tuple[Arm, ...]:
    lengths = [k for k in DRAFT_LENGTHS if k <= info.max_k]
    return (Arm(name), *(Arm(name, method, k) for method in info.methods if method != "plain" for k in lengths))


def _servable(named: tuple[Arm, ...], info: EngineInfo) -> tuple[Arm, ...]:
    """Keep the arms of a policy that this process can serve now."""
    return tuple(arm for arm in named if arm.k == 0 or (arm.method in info.methods and arm.k <= info.max_k))
