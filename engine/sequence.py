"""One request inside the engine: what was asked, what has been produced, what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from engine.messages import EngineMetrics, Speculation

if TYPE_CHECKING:
    from engine.control import Controller
    from engine.kv_cache import KVRow

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True, frozen=True)
class SamplingParams:
    """How tokens are chosen; the same for every method and k (speculation never changes the distribution)."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int = 16
    """Output tokens at most; the server has already cut it to the context window."""
    stop: tuple[str, ...] = ()
    """Stop strings; the output ends before the first of them."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: no log-probabilities. j ≥ 0: those of the chosen token and of the j most likely ones."""
    grammar: dict[str, Any] | None = None
    """A JSON schema that the output must satisfy (`{}`: any JSON object); None: free text."""


@dataclass(slots=True, frozen=True)
class GenerateRequest:
    """What the server hands to the core. Validated: the core refuses nothing that a client could have caused."""

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    speculation: Speculation
    """method `plain` and k 0 for plain decoding."""
    prediction_ids: list[int] = field(default_factory=list)
    """OpenAI's Predicted Outputs, tokenised: draft text that is tried first."""
    cache_key: str = ""
    """Suffix and prefix reuse never cross this key (the tenant)."""
    task: str = ""
    """The task's name, where the gateway passes it on; only the synthetic-acceptance mode looks at it."""


@dataclass(slots=True)
class TokenLogprob:
    """Log-probability of one emitted token and of the most likely alternatives, from the warped-free raw logits."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class StepOutput:
    """What one step produced for one request. Exactly one output with a finish_reason ends each request."""

    request_id: str
    token_ids: list[int]
    """New tokens, already cut at EOS, stop string and max_tokens (EOS itself is not delivered)."""
    text: str
    """New text, safe to send: never half a character, never the beginning of a possible stop string."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    metrics: EngineMetrics | None = None
    """With the finish_reason only."""
    completion_tokens: int = 0
    """Output tokens so far, EOS not counted."""
    cached_prompt_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    error: str | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A request that waits or runs. The step thread alone touches it after `EngineCore.add`."""

    request: GenerateRequest
    controller: Controller
    """Says which draft length the next step takes."""
    arrived: float
    """`time.perf_counter()` of `add`."""
    tokens: list[int]
    """Prompt and output; the keys and values of the last one are not computed yet."""
    num_prompt: int
    kv: KVRow | None = None
    """None while waiting."""
    cached_prompt_tokens: int = 0
    prefilled: bool = False
    """Whether the first token has been produced."""
    stalled: int = 0
    """Times that younger requests were admitted before it."""

    @property
    def row(self) -> KVRow:
        """The KV of a running sequence."""
        if self.kv is None:
            raise RuntimeError(f"{self.request_id} is not running")
        return self.kv

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values are missing: 1 while decoding, more while the prompt is being taken in."""
        return len(self.tokens) - (self.kv.length if self.kv is not None else 0)

    @property
    def remaining(self) -> int:
        """Output tokens still allowed."""
        return self.request.sampling.max_tokens - self.num_output
