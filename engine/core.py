"""The engine's step: schedule → propose → verify → accept → update. A step thread in `engine/server` drives it.

Every request brings its own method and draft length; plain decoding is an empty draft. One packed forward pass serves
plain rows, rounds of any length and prompt chunks together.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.attention import RowInput
from engine.config import EngineConfig
from engine.cost_fit import write_costs
from engine.costs import CostModel, StepTiming
from engine.detokenizer import Delivery
from engine.drafting import Drafting, Want
from engine.errors import ModelError
from engine.intake import Intake, Run
from engine.kept_costs import cache_path
from engine.kv_cache import KVPool
from engine.messages import CostTable
from engine.model_runner import make_runner
from engine.models import LoadedModel
from engine.models.paths import models_dir
from engine.prefix_cache import KVMemory
from engine.profiler import BAND_CONTEXTS, Point, Profiler
from engine.sampler import Draft, Sampler, Verdict
from engine.scheduler import Plan, Scheduler
from engine.sequence import GenerateRequest, StepOutput
from engine.spec_decode.proposals import Proposals
from engine.spec_decode.proposer import Observer
from engine.spec_decode.synthetic import AcceptanceProfile, SyntheticSampler

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CoreStats:
    """What `/v1/engine/info` and `/metrics` report of the core."""

    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_total: int
    profiled: bool
    preemptions: int


class EngineCore:
    """Decodes many requests together. `add`, `abort`, `has_work`, `costs`, `stats` are thread-safe; `step` is not."""

    def __init__(self, model: LoadedModel, config: EngineConfig, draft: LoadedModel | None = None) -> None:
        """Raises ModelError where a model cannot be run exactly."""
        self._model = model
        self._config = config
        together = config.together(model.device.type)
        self._runner = make_runner(model, static=together > 0)
        pool = KVPool(self._runner.kv_shape, config.kv_tokens, together=together)
        self._memory = KVMemory(pool, reuse=config.prefix_reuse)
        self._scheduler = Scheduler(
            self._memory,
            max_batch=config.max_batch,
            max_waiting=config.max_waiting,
            prefill_chunk=config.prefill_chunk,
            max_k=config.max_k,
        )
        self._proposals = Proposals(config, model, draft)
        profile = config.synthetic_acceptance
        self._sampler = Sampler() if profile is None else SyntheticSampler(AcceptanceProfile.load(profile))
        self._costs = CostModel()
        self._costs_path = _costs_path(model, config, draft, self._proposals.head)
        if config.profile:
            self._costs.load(self._costs_path)
        self._intake = Intake(model, config, self._costs, methods=self._proposals.methods, kv_tokens=self._memory.total)
        self._profiler = Profiler(self._runner, self._memory, self._proposals, self._costs)
        self._observers: list[Observer] = []
        if self._proposals.taps:
            self.watch(self._proposals.taps, self._proposals.observe)
        self._drafting = Drafting(self._proposals, self._costs)
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()
        self._arriving: list[Run] = []
        self._leaving: set[str] = set()

    @property
    def methods(self) -> list[str]:
        """Speculation methods that a request may ask for."""
        return self._proposals.methods

    @property
    def head(self) -> str | None:
        """What the feature-fed head in use is called, with its hash; None without one."""
        return self._proposals.head

    @property
    def synthetic(self) -> bool:
        """Whether acceptance is drawn from a profile (load tests): the outputs are not the model's."""
        return self._config.synthetic_acceptance is not None

    def add(self, request: GenerateRequest) -> None:
        """Queue a request. Raises QueueFull, and RequestRejected where this process can never serve it."""
        run = self._intake.make(request)
        with self._lock:
            self._scheduler.check_room(self._waiting(), retry_after_s=1.0)
            self._arriving.append(run)

    def abort(self, request_id: str) -> None:
        """End a request at the next step, wherever it is. Unknown and finished ids are ignored."""
        with self._lock:
            self._leaving.add(request_id)

    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return bool(self._runs or self._arriving or self._leaving)

    def costs(self) -> CostTable:
        """Measured step costs."""
        return self._costs.table()

    def stats(self) -> CoreStats:
        """Counts of this moment."""
        return CoreStats(
            running=len(self._scheduler.running),
            waiting=self._waiting(),
            kv_tokens_used=self._memory.used,
            kv_tokens_total=self._memory.total,
            profiled=self._costs.profiled,
            preemptions=self._scheduler.preemptions,
        )

    def watch(self, taps: tuple[int, ...], observer: Observer) -> None:
        """Show `observer` the target's hidden states after the layers `taps`, pass by pass. Raises ModelError."""
        if self._runner.taps not in {(), taps}:
            raise ModelError(f"hidden states of layers {self._runner.taps} are watched already, not {taps}")
        self._runner.taps = taps
        self._observers.append(observer)

    def profile_once(self) -> bool:
        """Time one pair of steps; the step thread calls this while there is no work, until it returns False."""
        if not self._config.profile or self._costs.profiled:
            return False
        if self._profiler.step(max_batch=self._config.max_batch, max_k=self._config.max_k, max_len=self._model.max_len):
            return True
        self._costs.save(self._costs_path)
        self.export_costs()
        return False

    def measure(self, batches: tuple[int, ...], ks: tuple[int, ...], context: int) -> CostTable:
        """Time rounds of every batch and draft length now; for a core that serves nobody."""
        self._profiler.measure([Point(batch, context, k) for batch in batches for k in ks])
        return self.costs()

    def export_costs(self) -> None:
        """Write the simulator's cost file, where the operator asked for one; after profiling, at start and at exit."""
        if self._config.costs_out is not None:
            write_costs(Path(self._config.costs_out), self.costs(), BAND_CONTEXTS)

    def step(self) -> list[StepOutput]:
        """Advance every scheduled sequence by one round and return what may be sent."""
        outputs = self._take_in()
        plan = self._scheduler.schedule()
        if not plan:
            return outputs
        started = time.perf_counter()
        drafts = self._propose(plan)
        proposed = time.perf_counter()
        verdicts = self._verify(plan, drafts)
        timing = StepTiming(proposed - started, time.perf_counter() - proposed)
        self._account(plan, drafts, timing)
        return outputs + self._update(drafts, verdicts, timing)

    def _waiting(self) -> int:
        """Requests not running yet; the scheduler's queues belong to the step thread and are not touched."""
        return max(0, len(self._runs) - len(self._scheduler.running)) + len(self._arriving)

    def _take_in(self) -> list[StepOutput]:
        """Queue what has arrived, end what has been aborted."""
        with self._lock:
            arriving, self._arriving = self._arriving, []
            leaving, self._leaving = self._leaving, set()
            for run in arriving:
                self._runs[run.sequence.request_id] = run
                self._scheduler.add(run.sequence)
        if not leaving:
            return []
        gone = self._scheduler.remove(lambda sequence: sequence.request_id in leaving)
        return [self._end(self._runs[one.request_id], Delivery(finish_reason="abort")) for one in gone]

    def _propose(self, plan: Plan) -> list[tuple[Run, Draft]]:
        """Draft for every decoding sequence; a prompt's last chunk gets an empty draft, to draw its first token."""
        load = len(plan.decodes)
        wants = []
        for sequence in plan.decodes:
            k = 0
            if sequence.prefilled and sequence.request.speculation.k:
                k = sequence.controller.next_k(load, len(sequence.tokens))
            run = self._runs[sequence.request_id]
            wants.append(Want(sequence, run.sampler, max(0, min(k, sequence.remaining - 1)), run.metrics.chance))
        drafts = self._drafting.draft(wants)
        rows = [(self._runs[want.sequence.request_id], draft) for want, draft in zip(wants, drafts, strict=True)]
        last = [sequence for sequence, take in plan.prefills if take == sequence.num_uncomputed]
        return rows + [(self._runs[sequence.request_id], Draft([])) for sequence in last]

    def _verify(self, plan: Plan, drafts: list[tuple[Run, Draft]]) -> list[Verdict]:
        """One forward pass over all rows, then the sampler's verdict on each draft."""
        rows = []
        owners = [run.sequence for run, _ in drafts]
        for run, draft in drafts:
            kv = run.sequence.row
            rows.append(RowInput(kv, run.sequence.tokens[kv.length :] + draft.tokens, len(draft.tokens) + 1))
        for sequence, take in plan.prefills:
            kv = sequence.row
            if take < sequence.num_uncomputed:
                rows.append(RowInput(kv, sequence.tokens[kv.length : kv.length + take], 0))
                owners.append(sequence)
        logits = self._runner.forward(rows)
        if self._runner.features is not None:
            parts = torch.split(self._runner.features, [len(row.tokens) for row in rows])
            for observer in self._observers:
                observer(list(zip(owners, parts, strict=True)))
        return self._sampler.verify(logits, [(run.sampler, draft) for run, draft in drafts])

    def _account(self, plan: Plan, drafts: list[tuple[Run, Draft]], timing: StepTiming) -> None:
        """Let the cost table see a step in which nothing but decoding happened."""
        if plan.prefills or not drafts:
            return
        context = sum(len(run.sequence.tokens) for run, _ in drafts) // len(drafts)
        ks = {len(draft.tokens) for _, draft in drafts}
        methods = {run.sequence.request.speculation.method for run, draft in drafts if draft.tokens}
        if len(ks) == 1 and len(methods) <= 1:
            method = methods.pop() if methods else "plain"
            self._costs.observe(batch=len(drafts), context=context, k=ks.pop(), method=method, timing=timing)
        elif len(ks) > 1:
            drafted = sum(len(draft.tokens) for _, draft in drafts)
            self._costs.observe_mixed(batch=len(drafts), context=context, drafted=drafted, seconds=timing.verify_s)

    def _update(self, drafts: list[tuple[Run, Draft]], verdicts: list[Verdict], timing: StepTiming) -> list[StepOutput]:
        """Append the emitted tokens, roll back the rejected ones, count, and end what is complete."""
        outputs = []
        batch = len(drafts)
        for (run, draft), verdict in zip(drafts, verdicts, strict=True):
            error = verdict.error
            delivery = Delivery(finish_reason="error")
            if error is None:
                try:
                    delivery = self._advance(run, draft, verdict, timing, batch)
                except Exception as failure:  # one request's fault must not end the others
                    log.exception("request %s failed", run.sequence.request_id)
                    error = f"the request failed: {failure}"
            if delivery.finish_reason is not None:
                self._scheduler.finish(run.sequence)
                outputs.append(self._end(run, delivery, error))
            elif delivery.token_ids or delivery.text:
                outputs.append(_output(run, delivery))
        return outputs

    @staticmethod
    def _advance(run: Run, draft: Draft, verdict: Verdict, timing: StepTiming, batch: int) -> Delivery:
        """Take one verdict into one request and return what may be sent of it."""
        sequence = run.sequence
        delivery = run.stream.push(verdict.tokens, verdict.logprobs)
        emitted = verdict.tokens[: delivery.consumed]
        accepted = min(verdict.accepted, len(emitted) - 1)
        run.sampler.count(emitted)
        sequence.tokens.extend(emitted)
        sequence.row.truncate(len(sequence.tokens) - 1)
        if sequence.prefilled:
            run.metrics.record(drafted=len(draft.tokens), accepted=accepted, emitted=len(emitted), batch=batch)
            run.metrics.charge(drafted=len(draft.tokens), draft_s=timing.draft_s, verify_s=timing.verify_s)
            sequence.controller.observe(len(draft.tokens), accepted)
        if draft.predicted:
            run.accepted_prediction += accepted
            run.rejected_prediction += len(draft.tokens) - accepted
        sequence.prefilled = True
        return delivery

    def _end(self, run: Run, delivery: Delivery, error: str | None = None) -> StepOutput:
        """Forget a request and return its last output."""
        self._proposals.release(run.sequence)
        del self._runs[run.sequence.request_id]
        output = _output(run, delivery)
        output.error = error
        output.metrics = run.metrics.report(run.sequence.controller.switches)
        return output


def _costs_path(model: LoadedModel, config: EngineConfig, draft: LoadedModel | None, head: str | None) -> Path:
    facts = (model.name, model.dtype, model.device, config.num_threads, config.max_batch, config.max_k)
    drafts = [name for name in (draft.name if draft is not None else None, head) if name is not None]
    return cache_path(models_dir(config.models_dir), *facts, "+".join(drafts))


def _output(run: Run, delivery: Delivery) -> StepOutput:
    return StepOutput(
        request_id=run.sequence.request_id,
        token_ids=delivery.token_ids,
        text=delivery.text,
        logprobs=delivery.logprobs,
        finish_reason=delivery.finish_reason,
        completion_tokens=run.stream.delivered,
        cached_prompt_tokens=run.sequence.cached_prompt_tokens,
        accepted_prediction_tokens=run.accepted_prediction,
        rejected_prediction_tokens=run.rejected_prediction,
    )
