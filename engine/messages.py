"""Every message that crosses the wire between gateway and engine, beyond OpenAI's own fields. Torch-free.

The request carries `speculation`; the response (and the last usage chunk of a stream) carries `metrics`; costs are read
from `GET /v1/engine/costs` and capabilities from `GET /v1/engine/info`.
"""

from __future__ import annotations

import msgspec

METHODS = ("ngram", "suffix", "draft_model", "eagle", "hybrid")
"""Speculation methods that an engine may offer; `hybrid` is n-gram where it matches and a model's draft elsewhere.

Plain decoding is `k = 0` and has no method of its own."""


class Adaptive(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What the engine needs to control one request in flight (`engine/control.py`)."""

    break_even: list[tuple[int, float]] = msgspec.field(default_factory=list)
    """Pairs `(k, x)`: with draft length k a round pays iff it emits more than x = 1 + α + β tokens on average."""
    prior: list[float] = msgspec.field(default_factory=list)
    """`prior[i]`: the task's acceptance probability at draft position i, given that all before it were accepted."""
    strength: float = 32.0
    """How many draft tokens the prior weighs: small where the task's requests differ much."""
    probe: int = 16
    """Plain steps after which a request that stopped drafting tries once more (longer after each failure); 0: never."""
    after_full: list[float] = msgspec.field(default_factory=list)
    """Factors on the odds of `prior`, at the first position and at the others, after a round accepted in full."""
    after_other: list[float] = msgspec.field(default_factory=list)
    """The same after any other round. Empty: 1."""
    after_gap: list[float] = msgspec.field(default_factory=list)
    """The same after steps without a draft. Empty: 1."""


class Speculation(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The request's `speculation` object: which method, with which draft length."""

    method: str
    """One of `METHODS`, or `plain` (then k must be 0)."""
    k: int
    """Draft tokens proposed per round at most; 0 is plain decoding."""
    adaptive: Adaptive | None = None
    """Absent: the engine keeps to k. Present: it may shorten or stop the draft."""


class SpeculativeDecodingMetrics(msgspec.Struct):
    """`metrics.speculative_decoding`, in the shape of vLLM's `--per-request-spec-decode-metrics` (PR #48915)."""

    acceptance_histogram: list[int]
    """`[j]`: rounds in which exactly j draft tokens were accepted; `[0]` are the zero-accept rounds."""
    num_spec_steps: int
    """Rounds: verify passes over at least one draft token."""
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    mean_acceptance_length: float
    """a = 1 + accepted/rounds: tokens emitted per round, the bonus token included; 0.0 when there was no round."""
    draft_acceptance_rate: float
    """accepted/drafted; 0.0 when nothing was drafted."""


class BreakevenMetrics(msgspec.Struct):
    """`metrics.breakeven`: what this request's steps cost. Seconds are wall time of the steps it took part in."""

    draft_s: float
    """Σ draft time of its rounds."""
    verify_s: float
    """Σ verify time of its rounds (sampling and roll-back included)."""
    plain_s: float
    """Σ time of its undrafted (plain) decode steps."""
    rounds_by_k: dict[str, int]
    """Rounds by the number of tokens really drafted, keys are decimal strings."""
    undrafted: int
    """Decode steps in which this request had no draft token."""
    switches: int
    """Changes of the draft length in flight."""
    batch_mean: float
    """Mean number of sequences in the steps it took part in (the load it saw)."""
    emitted: list[int] = msgspec.field(default_factory=list)
    """Tokens emitted by each decode step in order (rounds and undrafted steps), cut at 4,096 entries."""
    drafted: list[int] = msgspec.field(default_factory=list)
    """Draft tokens of the same steps; 0 marks an undrafted step."""


class EngineMetrics(msgspec.Struct, omit_defaults=True):
    """The response's `metrics` object; `speculative_decoding` is null for n > 1, as in vLLM."""

    speculative_decoding: SpeculativeDecodingMetrics | None = None
    breakeven: BreakevenMetrics | None = None


class CostCell(msgspec.Struct):
    """Measured cost of one kind of step: medians of interleaved plain and verify steps, in seconds."""

    batch: int
    """Running sequences."""
    context: int
    """Mean context length of them, tokens (the lower edge of the context band)."""
    k: int
    method: str
    draft_s: float
    """Median draft phase of a round at this batch, method and k."""
    verify_s: float
    """Median verify pass over k + 1 tokens a sequence, sampling and roll-back included."""
    plain_s: float
    """Median plain step at the same batch and context, interleaved with the above."""
    n: int
    """Samples behind the medians."""


class MixedCell(msgspec.Struct):
    """Measured cost of steps whose rows verify unlike numbers of tokens: some requests draft and others do not."""

    batch: int
    context: int
    """As in `CostCell`."""
    drafted: int
    """Draft tokens in the whole step."""
    verify_s: float
    """Median verify pass, sampling and roll-back included."""
    plain_s: float
    """Median plain step at the same batch and context."""
    n: int
    """Samples behind the median."""


class CostTable(msgspec.Struct, omit_defaults=True):
    """`GET /v1/engine/costs`."""

    cells: list[CostCell]
    mixed: list[MixedCell] = msgspec.field(default_factory=list)


class EngineInfo(msgspec.Struct):
    """`GET /v1/engine/info`: what this engine process is and can do."""

    model: str
    max_model_len: int
    methods: list[str]
    """Methods that this process can serve now (draft_model only with a draft loaded)."""
    max_k: int
    epoch: str
    """`<kind>.<start>`. Changes with every process start, engine version and draft: statistics never mix epochs."""
    version: str
    dtype: str
    device: str
    threads: int
    draft: str | None
    has_tool_template: bool
    max_batch: int
    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_total: int
    profiled: bool
    """Whether the first cost profile is complete."""
