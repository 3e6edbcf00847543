"""Any OpenAI-compatible server: times only. Also the base of the adapters that read more."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.backends.http import HttpBackend
from gateway.backends.prometheus import read_metrics
from gateway.epochs import epoch_of
from gateway.errors import BackendUnreachable, BreakevenError, UpstreamError


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


class GenericBackend(HttpBackend):
    """A server known only by `GET /v1/models`; its speculation, if any, was fixed at launch."""

    async def probe(self) -> None:
        """Read the models; the policy's one must be among them. Without a list the policy's word counts."""
        try:
            raw = await self.client.get("/v1/models")
            models = msgspec.json.decode(raw, type=_Models).data
        except (UpstreamError, msgspec.MsgspecError) as error:
            down = isinstance(error, UpstreamError) and error.status >= 500
            if down or not self.target.model:
                why = f"{self.client.url}/v1/models does not list models ({error}): name the model in the policy"
                raise BackendUnreachable(why) from error
        else:
            self._choose(models)
        self.epoch = self.epoch or "1"

    def _choose(self, models: list[_Model]) -> None:
        wanted = self.target.model
        served = next((model for model in models if wanted in ("", model.id)), None)
        if served is None:
            names = ", ".join(model.id for model in models) or "none"
            raise BackendUnreachable(f"{self.client.url} does not serve model {wanted!r}; it has: {names}")
        self.model = served.id
        self.max_model_len = served.max_model_len or _window(served.meta)


class MeasuredBackend(GenericBackend):
    """A server that also tells its load on a Prometheus page, where it was started with one."""

    running_metric = ""
    waiting_metric = ""
    kv_metrics: tuple[str, ...] = ()
    """Names under which versions of the server tell which share of its cache is in use."""
    version_path = ""
    """Document with a `version`; empty where the server has none."""
    _start = ""

    async def probe(self) -> None:
        """Read models, then load and process start from `/metrics`, which not every build has."""
        ours = self.in_flight
        await super().probe()
        try:
            page = (await self.client.get("/metrics")).decode("utf-8", "replace")
        except BreakevenError:
            return
        samples = read_metrics(page)
        self.look(samples)
        self.running_seen = max(0, int(samples.get(self.running_metric, 0)) - ours)
        self.waiting = int(samples.get(self.waiting_metric, 0))
        self.kv_used = next((samples[name] for name in self.kv_metrics if name in samples), None)
        started = samples.get("process_start_time_seconds")
        if started is not None:
            start = f"{started:.0f}"
            if start != self._start and self.version_path:
                self.version = await self._told_version()
            self._start = start
            self.epoch = epoch_of((self.kind, self.model, self.version), start)

    async def _told_version(self) -> str:
        """Return the version of a process that has just started, empty where it does not say."""
        try:
            told = msgspec.json.decode(await self.client.get(self.version_path), type=_Version)
        except (BreakevenError, msgspec.MsgspecError):
            return ""
        return told.version

    def look(self, samples: dict[str, float]) -> None:
        """See a whole page; for what one engine tells beyond load."""


def _window(meta: dict[str, Any] | None) -> int | None:
    """Return llama.cpp's context window (`meta.n_ctx`, or that of training)."""
    for name in ("n_ctx", "n_ctx_train"):
        value = (meta or {}).get(name)
        if isinstance(value, int) and value > 0:
            return value
    return None
