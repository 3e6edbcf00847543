"""From a request to what the step loop works on: checks, sampler, grammar, in-flight rule. Called by the core."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.control import Controller
from engine.costs import CostModel
from engine.detokenizer import OutputStream
from engine.errors import RequestRejected
from engine.grammar import GrammarCompiler
from engine.models import LoadedModel
from engine.sampler import SamplerState
from engine.sequence import GenerateRequest, Sequence
from engine.spec_decode.metrics import RequestMetrics


@dataclass(slots=True)
class Run:
    """Everything that belongs to one request between `EngineCore.add` and its last output."""

    sequence: Sequence
    sampler: SamplerState
    stream: OutputStream
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    accepted_prediction: int = 0
    rejected_prediction: int = 0


class Intake:
    """Checks requests against what this process can do and makes their runs."""

    def __init__(
        self, model: LoadedModel, config: EngineConfig, costs: CostModel, *, methods: list[str], kv_tokens: int
    ) -> None:
        self._model = model
        self._config = config
        self._costs = costs
        self._methods = methods
        self._kv_tokens = kv_tokens
        self._grammars = GrammarCompiler(model, threads=config.num_threads)
        self._numbers = itertools.count(1)

    def make(self, request: GenerateRequest) -> Run:
        """Return the request's run. Raises RequestRejected where this process can never serve it."""
        self._check(request)
        params = request.sampling
        grammar = self._grammars.start(params.grammar) if params.grammar is not None else None
        seed = (self._config.seed << 32) + next(self._numbers) if params.seed is None else params.seed
        sequence = Sequence(
            request=request,
            controller=self._controller(request),
            arrived=time.perf_counter(),
            tokens=list(request.prompt_ids),
            num_prompt=len(request.prompt_ids),
        )
        return Run(
            sequence,
            SamplerState(params, request.prompt_ids, seed, grammar, request.task),
            OutputStream(params, self._model.tokenizer, self._model.eos_ids),
        )

    def _controller(self, request: GenerateRequest) -> Controller:
        """The in-flight rule over costs measured here; the request's own list holds until there are some."""
        wish = request.speculation
        if wish.adaptive is None:
            return Controller(wish.k, None)
        given = wish.adaptive.break_even
        return Controller(
            wish.k,
            wish.adaptive,
            break_even=lambda load, context: self._costs.break_even(wish.method, load, context) or given,
        )

    def _check(self, request: GenerateRequest) -> None:
        wish = request.speculation
        if not request.prompt_ids:
            raise RequestRejected("the prompt has no tokens; this model needs at least one", param="prompt")
        if wish.k and wish.method not in self._methods:
            raise RequestRejected(
                f"speculation.method: expected one of plain, {', '.join(self._methods)}, got {wish.method!r}",
                param="speculation.method",
            )
        if not 0 <= wish.k <= self._config.max_k:
            raise RequestRejected(
                f"speculation.k: expected 0 to {self._config.max_k}, got {wish.k}", param="speculation.k"
            )
        need = len(request.prompt_ids) + request.sampling.max_tokens + self._config.max_k
        if need > self._kv_tokens:
            raise RequestRejected(
                f"the request needs {need} tokens of KV memory, this engine has {self._kv_tokens}",
                param="max_tokens",
                code="context_length_exceeded",
            )
