"""What all adapters share: one server watched in the background, requests in flight counted, signs of health."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from engine.messages import CostTable
from gateway.backends.base import Target
from gateway.backends.body import upstream_body
from gateway.backends.client import CannotConnect, HttpClient, HttpUpstream
from gateway.backends.draft import DraftWatch
from gateway.errors import BackendUnreachable, BreakevenError
from gateway.types import Arm, BackendState, Decision, GenerateRequest, Spec

log = logging.getLogger(__name__)
_MISSES = 3
"""Probes in a row that a server may fail to answer before it counts as down."""
WARM_UPS = 3
"""Requests of a gateway that a process started anew serves with cold caches: their times say nothing of later ones."""
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


class HttpBackend:
    """A backend of one server. Adapters say what it can do (`probe`), what to send and how to read statistics."""

    kind = "openai"
    per_request_stats = False
    per_request_switch = False
    adaptive = False
    tells_load = False
    """Whether the server says what runs there; else gateways tell each other."""
    stripped: tuple[str, ...] = ()
    """Fields of the client that never go upstream."""

    def __init__(self, target: Target) -> None:
        self.name = target.name
        self.target = target
        self.model = target.model
        self.arms = target.arms or (Arm(target.name),)
        self.timeouts = target.timeouts
        self.client = HttpClient(target)
        self.epoch = ""
        self._served_epoch = ""
        self._warm_ups = 0
        """Requests that a process which has started anew still has to serve before it counts as warm."""
        self.version = ""
        self.draft = ""
        self.draft_watch = DraftWatch()
        self.max_model_len: int | None = None
        self.has_tool_template: bool | None = None
        self.images: bool | None = None
        self.healthy = False
        self.detail = "not reached yet"
        self.in_flight = 0
        self.running_seen = 0
        """Running sequences at the last probe, or by the other gateways' word, that were not this gateway's own."""
        self.waiting = 0
        self.kv_used: float | None = None
        """Share of the server's cache in use at the last probe, where it says."""
        self._watch: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    async def start(self) -> None:
        """Begin to watch in the background."""
        self._watch = asyncio.create_task(self._watching(), name=f"watch {self.name}")

    async def aclose(self) -> None:
        """Stop watching, close connections."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        await self.client.aclose()

    def state(self) -> BackendState:
        """Return what is known now."""
        if self.healthy and self.epoch != self._served_epoch:  # a probe on its way has not told all yet
            self._warm_ups = WARM_UPS if self._served_epoch else 0  # the first epoch seen is not a restart
            self._served_epoch = self.epoch
            self.draft_watch.answers = self.draft_watch.rounds = 0
        return BackendState(
            name=self.name,
            kind=self.kind,
            healthy=self.healthy,
            arms=self.served_arms,
            model=self.model,
            max_model_len=self.max_model_len,
            epoch=self.epoch,
            warming=self.warming,
            has_tool_template=self.has_tool_template,
            per_request_stats=self.per_request_stats,
            per_request_switch=self.per_request_switch,
            adaptive=self.adaptive,
            running=self.in_flight + self.running_seen,
            waiting=self.waiting,
            kv_used=self.kv_used,
            detail=self.detail or self._draft_fault(),
            version=self.version,
            draft=self.draft,
            images=self.images,
        )

    def _draft_fault(self) -> str:
        watch = self.draft_watch
        return "" if watch.unheard else watch.fault(wanted=any(arm.k for arm in self.arms))

    @property
    def start_known(self) -> bool:
        """Whether a restart of the server shows."""
        return False

    @property
    def warming(self) -> bool:
        """Whether its process has started anew and served next to nothing yet."""
        return self._warm_ups > 0

    @property
    def served_arms(self) -> tuple[Arm, ...]:
        """The policy's arms; the plain one instead where the server says that it does not speculate."""
        return (Arm(self.name),) if self.draft_watch.speculates is False else self.arms

    def costs(self) -> CostTable | None:
        """Return None: only our engine measures its costs."""
        return None

    async def open(self, request: GenerateRequest, decision: Decision) -> HttpUpstream:
        """Send a request (see `Backend.open`). A failure marks the backend unhealthy until a probe succeeds."""
        body = upstream_body(request, model=self.model, fields=self.fields(request, decision), strip=self.stripped)
        self.in_flight += 1
        if self._warm_ups:
            self._warm_ups -= 1
        try:
            return await self.client.post(PATHS[request.endpoint], body, self.headers(request), self._read, self._done)
        except BaseException as error:
            self._done()
            if isinstance(error, CannotConnect):
                self._failed(str(error))
            elif isinstance(error, BackendUnreachable):
                self._hurry.set()
            raise

    def untold_load(self) -> int | None:
        """Return the requests in flight where the server tells no load."""
        return None if self.tells_load else self.in_flight

    def hear_load(self, others: int) -> None:
        """Take the other gateways' requests in flight, where the server tells no load."""
        if not self.tells_load:
            self.running_seen = others

    def _done(self) -> None:
        self.in_flight -= 1

    def _read(self, payload: dict[str, Any]) -> Spec | None:
        spec = self.spec(payload)
        if spec is not None and self.draft_watch.note(spec):
            log.warning("backend %s: %s %s", self.name, self.client.url, self.draft_watch.fault(wanted=True))
        return spec

    def _failed(self, why: str) -> None:
        if self.healthy:
            log.warning("backend %s: %s", self.name, why)
        self.healthy = False
        self.detail = why
        self._hurry.set()

    async def _watching(self) -> None:
        """Probe for ever. A busy server may miss a probe or two; one that nobody listens on is down at once."""
        misses = 0
        while True:
            self._hurry.clear()
            try:
                await self.probe()
            except BreakevenError as error:
                misses += 1
                if misses >= _MISSES or isinstance(error, CannotConnect) or not self.healthy:
                    self._failed(str(error))
            except Exception as error:
                log.exception("probe of backend %s", self.name)
                self._failed(f"probe failed: {error}")
            else:
                if not self.healthy:
                    log.info("backend %s is ready", self.name)
                self.healthy, self.detail, misses = True, "", 0
            pause = self.timeouts.poll if self.healthy else min(self.timeouts.poll, 0.25)
            if not self.healthy:
                await asyncio.sleep(pause)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)

    async def probe(self) -> None:
        """Look at the server once and note what it says. Raises BreakevenError when it cannot serve."""
        raise NotImplementedError

    def fields(self, request: GenerateRequest, decision: Decision) -> dict[str, Any]:
        """Return the fields that this engine gets beside the client's own."""
        del request, decision
        return {}

    def headers(self, request: GenerateRequest) -> dict[str, str]:
        """Return headers of this request: its id, and the trace it belongs to."""
        headers = {"x-request-id": request.request_id}
        trace = request.headers.get("traceparent")
        if trace:
            headers["traceparent"] = trace
        return headers

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read per-request statistics; none by default."""
        del payload
        return None
