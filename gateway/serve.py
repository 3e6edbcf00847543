"""One request, start to end: classify → match rule → decide → open upstream → stream → record. Called by `api/chat.py`.

Everything up to `open` reads memory only; recording is handed over and never waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.applications import Applications
from gateway.backends import Upstream
from gateway.classify import Classifier, Memory
from gateway.closing import make_record
from gateway.errors import ApiError, BackendUnreachable, NotFound, Unavailable, UpstreamError
from gateway.fingerprint import conversation_of, draw_of, fingerprint_of
from gateway.homes import Homes
from gateway.lossless.served import Served, audited
from gateway.policy import Policy, Rule, enforced, facts_of, match, within
from gateway.priority import Priorities, is_refusal
from gateway.relay import Relay
from gateway.routing import Snapshot
from gateway.seams import AuditSink, Decide, Generation, RecordSink, TextSink
from gateway.tap import Kept, Tap, wanted
from gateway.together import Together
from gateway.types import Arm, BackendState, Classification, Decision, GenerateRequest

_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
"""Answers of a backend after which another backend may do better."""
_USUAL_OUTPUT = 256
"""Reserved from a key's budget where a request names no limit."""


class Seen(NamedTuple):
    """A request's task, and the generation under which it was told: the request keeps to that one."""

    generation: Generation
    classification: Classification


class Service:
    """The parts that every request passes, in order."""

    def __init__(
        self,
        *,
        generation: Callable[[], Generation],
        decide: Decide,
        snapshot: Callable[[], Snapshot],
        sinks: tuple[RecordSink, ...],
        secret: bytes,
        texts: TextSink | None = None,
        audits: AuditSink | None = None,
    ) -> None:
        self.generation = generation
        self.decide = decide
        self.snapshot = snapshot
        self.sinks = sinks
        self.secret = secret
        self.texts = texts
        self.audits = audits
        self.serving = 0
        """Exchanges that have begun and not finished."""
        self.priorities = Priorities()
        self.homes = Homes()
        self._applications = Applications()
        self._memory = Memory()
        self._seeing: Together[GenerateRequest, Seen] = Together(self._see)
        self.bytes_per_token = 4.0
        """Request bytes per prompt token, learned from the usage that backends report."""

    async def see(self, request: GenerateRequest) -> Seen:
        """Tell the task of a request: at once where no other is being served, else together with those that wait."""
        return await self._seeing(request) if self.serving else self._see((request,))[0]

    def begin(self, request: GenerateRequest, seen: Seen) -> Exchange:
        """Find the rule of a request, decide its arm.

        Raises:
            NotFound: no backend has this model.
            Unavailable: none of those that have it can answer now.
        """
        states = candidates(seen.generation, request.model)
        request.application = self._applications.of(request, seen.classification.task)
        exchange = Exchange(self, request, seen.generation, seen.classification, states)
        exchange.decide(states)
        self.serving += 1
        return exchange

    def policy(self) -> Policy:
        """Return the policy in force."""
        return self.generation().policy

    def classifier(self) -> Classifier:
        """Return its classifier."""
        return self.generation().classifier

    def states(self) -> list[BackendState]:
        """Return the state of every backend."""
        return [backend.state() for backend in self.generation().backends.values()]

    def classify(self, body: dict[str, Any], declared: str | None) -> Classification:
        """Tell the task of a request, under the active policy's doubts."""
        return self._classify(self.generation(), [(body, declared)])[0]

    def _see(self, requests: Sequence[GenerateRequest]) -> list[Seen]:
        now = self.generation()
        found = self._classify(now, [(request.body, request.declared_task) for request in requests])
        return [Seen(now, each) for each in found]

    def _classify(self, now: Generation, asked: Sequence[tuple[dict[str, Any], str | None]]) -> list[Classification]:
        doubt, tasks = now.policy.classifier, now.policy.task_names
        found = now.classifier.classify_all(
            asked, threshold=doubt.threshold, fallback=doubt.fallback_task, memory=self._memory
        )
        pairs = zip(found, asked, strict=True)
        return [within(each, tasks, doubt.fallback_task, declared) for each, (_, declared) in pairs]

    def prompt_tokens(self, request: GenerateRequest) -> int:
        """Guess the length of the prompt: the gateway has no tokenizer."""
        return 1 + int(len(request.raw) / self.bytes_per_token)

    def expected_tokens(self, request: GenerateRequest) -> int:
        """Return what a request may cost at most, for its key's budget."""
        return self.prompt_tokens(request) + (request.max_tokens or _USUAL_OUTPUT) * request.n

    def learn(self, sent: int, prompt_tokens: int | None) -> None:
        """Refine the guess of prompt tokens from one answer's usage."""
        if prompt_tokens and sent:
            self.bytes_per_token += 0.02 * (min(40.0, max(1.0, sent / prompt_tokens)) - self.bytes_per_token)


class Exchange:
    """One request and its answer."""

    decision: Decision

    def __init__(
        self,
        service: Service,
        request: GenerateRequest,
        generation: Generation,
        classification: Classification,
        states: dict[str, BackendState],
    ) -> None:
        self.request = request
        self.classification = classification
        self.overhead_s = 0.0
        self.conversation = conversation_of(request, service.secret)
        self.prompt_tokens = service.prompt_tokens(request)
        self.used_tokens = 0
        """Prompt and completion together, once finished; what came through where the backend's count is missing."""
        self._service = service
        self._generation = generation
        self._states = states
        self._upstream: Upstream | None = None
        self._relay: Relay | None = None
        self._recorded = False
        self._tap: Tap | None = None
        self._retention: float | None = None
        """Seconds for which the text of this request is kept; None: not at all."""
        self._audit: Rule | None = None
        """The rule by which its answer is audited; None: it is not."""

    def decide(self, states: Mapping[str, BackendState]) -> None:
        """Find the rule and the arm; `states` are the backends that have the model.

        A rule in mode `observe` decides for the record only: the request goes as it would without that rule.
        """
        request, policy = self.request, self._generation.policy
        facts = facts_of(
            request,
            self.classification,
            load=sum([state.running for state in states.values()]),
            prompt_tokens=self.prompt_tokens,
            conversation=self.conversation,
        )
        first = match(policy, facts)
        rule = first if first.mode == "enforce" else enforced(policy, facts)
        self.decision = self._decide(rule, states)
        if first is not rule:
            self.decision.numbers["observed"] = self._observe(first, states)
        self._retention = rule.store.retention if wanted(rule, request, self._service.secret) else None
        self._audit = rule if audited(rule, request, self._service.secret) else None
        own = request.speculation
        if own is not None and self.decision.arm == request.arm_wish:
            arm = Arm(self.decision.arm.backend, own.method, own.k)
            self.decision.arm, self.decision.speculation = arm, own
            self.decision.reason = f"{arm.path} {arm}: forced by the request"

    def _observe(self, rule: Rule, states: Mapping[str, BackendState]) -> dict[str, str | None]:
        """Return what a rule would decide; where it would refuse, the request is none the worse for it."""
        try:
            observed = self._decide(rule, states)
        except ApiError as error:
            return {"rule": rule.name, "arm": None, "reason": error.message}
        return {"rule": rule.name, "arm": str(observed.arm), "reason": observed.reason}

    def _decide(self, rule: Rule, states: Mapping[str, BackendState]) -> Decision:
        service, request = self._service, self.request
        decision = service.decide(
            request,
            self.classification,
            rule,
            service.snapshot(),
            states,
            prompt_tokens=self.prompt_tokens,
            draw=draw_of(request.record_id or request.request_id, service.secret),
            policy=self._generation.policy.hash,
            conversation=self.conversation,
            home=service.homes.of(self.conversation),
        )
        decision.priority = service.priorities.of(rule, states[decision.arm.backend])
        return decision

    async def open(self) -> bytes:
        """Send the request and return the first bytes for the client: the whole answer, or a stream's first events.

        Where the backend fails before that, the other backends are tried in turn and the record says so.

        Raises:
            UpstreamError: the backend refused the request; its words are forwarded.
            BackendUnreachable: no backend gave an answer.
        """
        spared: BackendState | None = None
        while True:
            try:
                first = await self._attempt()
            except (UpstreamError, BackendUnreachable) as error:
                self.close()
                if is_refusal(error, self.decision):
                    spared, self.decision.priority = self._states[self.decision.arm.backend], None
                    continue
                if isinstance(error, UpstreamError) and error.status not in _RETRYABLE:
                    raise
                if not self._fall_back():
                    raise
                spared = None
            else:
                if spared is not None:
                    self._service.priorities.refuse(spared)
                return first

    async def _attempt(self) -> bytes:
        """Try the arm decided for."""
        request, name = self.request, self.decision.arm.backend
        state = self._states[name]
        self._tap = Tap() if self._retention is not None or self._audit is not None else None
        self._relay = None
        self.overhead_s = time.perf_counter() - request.arrived
        self._upstream = await self._generation.backends[name].open(request, self.decision)
        self._relay = Relay(
            keep_usage=request.include_usage,
            keep_metrics=request.debug,
            fingerprint=fingerprint_of(self.decision.arm, state.draft, state.version),  # a pool may have gone plain
            tap=self._tap,
        )
        if request.stream:
            return await self.more()
        body = await self._upstream.read()
        try:
            return self._relay.answer(body)
        except ValueError as error:
            raise BackendUnreachable(f"backend {name} sent no JSON object: {error}") from error

    def _fall_back(self) -> bool:
        """Decide again without the backend that failed; False where no other is left."""
        failed = self.decision.arm.backend
        left = {name: state for name, state in self._states.items() if name != failed and state.healthy}
        if not left:
            return False
        self._states = left
        self.decide(left)
        self.decision.state = "fallback"
        self.decision.reason = f"{self.decision.arm.path} {self.decision.arm}: fallback, {failed} failed"
        return True

    async def more(self) -> bytes:
        """Return the next events of the stream, b"" at its end.

        Raises:
            BackendUnreachable: the stream broke off.
            UpstreamError: the stream's first event is an error, so that a real status can still be sent.
        """
        relay, upstream = self._relay, self._upstream
        if relay is None or upstream is None or relay.done:
            return b""
        while chunk := await upstream.chunk():
            try:
                out = relay.feed(chunk, time.perf_counter())
            except ValueError as error:
                raise BackendUnreachable(f"backend {self.decision.arm.backend} sent {error}") from error
            if relay.error is not None and not relay.events:
                raise UpstreamError(_status_of(relay.error), out.removeprefix(b"data: ").partition(b"\n")[0], {})
            if out:
                return out
        try:
            return relay.end(time.perf_counter())
        except ValueError as error:
            raise BackendUnreachable(f"backend {self.decision.arm.backend} {error}") from error

    @property
    def complete(self) -> bool:
        """Whether the stream has said that it is done and nothing more is on its way."""
        return self._relay is not None and self._relay.done and self._upstream is not None and self._upstream.finished

    def close(self) -> None:
        """Abort the work upstream unless it is complete. Idempotent."""
        if self._upstream is not None:
            self._upstream.close()

    def finish(self, status: int, error_code: str | None = None) -> None:
        """Close the clock, read acceptance, hand the record over. The first call counts."""
        if self._recorded:
            return
        self._recorded = True
        relay, service = self._relay, self._service
        service.serving -= 1
        record = make_record(
            self.request,
            self.classification,
            self.decision,
            relay,
            self._upstream.spec(relay.final) if self._upstream and relay else None,
            epoch=self._states[self.decision.arm.backend].epoch,
            warm_up=self._states[self.decision.arm.backend].warming,
            status=status,
            error_code=error_code,
            overhead_s=self.overhead_s,
            fallback=self.decision.state == "fallback",
            conversation=self.conversation,
            secret=service.secret,
        )
        self.close()
        if status == 200:
            service.homes.note(self.conversation, record.arm.backend)
        if record.prompt_tokens is not None:
            self.used_tokens = record.prompt_tokens + (record.completion_tokens or 0)
        elif relay is not None and relay.events:
            self.used_tokens = self.prompt_tokens + relay.events
        service.learn(len(self.request.raw), record.prompt_tokens)
        for sink in service.sinks:
            sink.submit(record)
        if self._retention is not None and service.texts is not None:
            size = 2 * len(self.request.raw) + (self._tap.size if self._tap else 0)
            service.texts.submit(Kept(self.request.body, size, record, self._retention, self._tap))
        if self._audit is not None and service.audits is not None and status == 200:
            self._offer(self._audit, service.audits)

    def _offer(self, rule: Rule, audits: AuditSink) -> None:
        """Hand a complete answer over to be audited."""
        relay, tap = self._relay, self._tap
        if relay is None or tap is None or relay.error is not None or relay.finish_reason is None:
            return
        audits.submit(
            Served(
                request=self.request,
                backends=self._generation.backends,
                policy=self._generation.policy.hash,
                rule=rule,
                task=self.classification.task,
                arm=self.decision.arm,
                tap=tap,
                finish_reason=relay.finish_reason,
                prompt_tokens=self.prompt_tokens,
            )
        )


def candidates(generation: Generation, model: str) -> dict[str, BackendState]:
    """Return the state of each backend that has this model; at least one of them is healthy.

    Raises:
        NotFound: no backend has this model.
        Unavailable: none of those that have it can answer now.
    """
    states = [backend.state() for backend in generation.backends.values()]
    having = {state.name: state for state in states if state.model == model}
    if any(state.healthy for state in having.values()):
        return having
    if having or any(not state.model for state in states):
        why = "; ".join(f"{state.name}: {state.detail}" for state in states if not state.healthy)
        raise Unavailable(f"no backend can answer now ({why})", code="no_backend", headers={"retry-after": "1"})
    names = ", ".join(sorted({state.model for state in states}))
    raise NotFound(f"model {model!r} does not exist; known: {names}", param="model", code="model_not_found")


def _status_of(error: Mapping[str, Any]) -> int:
    """Return the HTTP status that an in-band error names, else 500."""
    code = error.get("code")
    return code if isinstance(code, int) and 400 <= code <= 599 else 500
