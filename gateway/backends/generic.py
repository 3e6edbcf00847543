"""Any OpenAI-compatible server: times only. Also the base of the adapters that read more."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.backends.base import Target
from gateway.backends.http import HttpBackend
from gateway.backends.prometheus import read_metrics
from gateway.epochs import epoch_of
from gateway.errors import BackendUnreachable, UpstreamError


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


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
    preemptions = ""
    """Total of sequences that lost their place in the cache to others."""
    start_header = ""
    """Header of that page that is another one for each process, where the page itself names no start."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._totals: Mapping[str, float] = {}
        self._told, self._start = "", ""
        self._met = False
        """Whether the process that answers has been identified; one that was down may be another afterwards."""

    @property
    def start_known(self) -> bool:
        """Whether a restart of the server shows."""
        return bool(self._start or self._totals)

    async def probe(self) -> None:
        """Read models, then load and process start from `/metrics`, which not every build has."""
        ours = self.in_flight
        await super().probe()
        samples: dict[str, float] = {}
        told = ""
        try:
            page, headers = await self.client.fetch("/metrics")
            samples = read_metrics(page.decode("utf-8", "replace"))
            started = samples.get("process_start_time_seconds")
            told = headers.get(self.start_header, "") if started is None else f"{started:.0f}"
            self._load(samples, ours)
        except BackendUnreachable:
            self._met = self._met and self.healthy
            return
        except UpstreamError:
            if self.healthy and self._met:
                return
        totals = {name: value for name, value in samples.items() if name.endswith("_total")}
        fell = any(value < self._totals.get(name, 0.0) for name, value in totals.items())
        if fell or told != self._told or not (self.healthy and self._met):
            self._met = False  # until it has been: a document may fail to come
            await self._meet(told, samples, fell=fell)
            self._met = True
        self._totals = totals
        self.look(samples)

    def _load(self, samples: Mapping[str, float], ours: int) -> None:
        self.tells_load = self.running_metric in samples
        if self.tells_load:
            self.running_seen = max(0, int(samples[self.running_metric]) - ours)
        self.waiting = int(samples.get(self.waiting_metric, 0))
        self.kv_used = next((samples[name] for name in self.kv_metrics if name in samples), None)
        if samples.get(self.preemptions, 0.0) > self._totals.get(self.preemptions, math.inf):
            self.kv_used = 1.0  # it has just had no room, whatever is free at this moment

    async def _meet(self, told: str, samples: Mapping[str, float], *, fell: bool) -> None:
        """Learn what a process is that may be a new one; where nothing names its start, totals that fell tell of it."""
        own = await self.identify(samples)
        self._told, self._start = told, told or own or (f"{time.time():.0f}" if fell else self._start)
        drafts = "plain" if self.draft_watch.speculates is False else self.draft
        self.epoch = epoch_of((self.kind, self.model, self.version, drafts), self._start or "1")

    async def identify(self, samples: Mapping[str, float]) -> str:
        """Read version and draft of a process just met, and what is another for each process, "" where nothing is."""
        del samples
        return ""

    async def document(self, path: str) -> Any:  # noqa: ANN401  # JSON
        """Return a JSON document, None where the server has none there.

        Raises BackendUnreachable: it gave no answer, and may yet have one.
        """
        try:
            return msgspec.json.decode(await self.client.get(path))
        except (UpstreamError, msgspec.DecodeError):
            return None

    def look(self, samples: Mapping[str, float]) -> None:
        """See a whole page; for what one engine tells beyond load."""


def text(document: Any, name: str) -> str:  # noqa: ANN401  # JSON
    """Return a text field of a JSON document, "" where there is none."""
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, str) else ""


def _window(meta: dict[str, Any] | None) -> int | None:
    """Return llama.cpp's context window (`meta.n_ctx`, or that of training)."""
    for name in ("n_ctx", "n_ctx_train"):
        value = (meta or {}).get(name)
        if isinstance(value, int) and value > 0:
            return value
    return None
