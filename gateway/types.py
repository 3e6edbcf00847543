"""The structs that a request's path hands from step to step (api → classify → policy → routing → backends → recorder).

No behaviour beyond parsing and formatting of names; no I/O. Times are seconds; `*_at` are Unix times, others durations.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.messages import Speculation

PLAIN = "plain"
Path = Literal["speculative", "plain"]
PathWish = Literal["auto", "plain", "speculative"]
Endpoint = Literal["chat", "completions"]
DEFAULT_TASKS = ("structured", "code", "math", "summarization", "grounded_qa", "translation", "creative", "chat")


class Arm(msgspec.Struct, frozen=True, order=True):
    """A way to decode: `<backend>/plain` or `<backend>/<method>-k<k>`."""

    backend: str
    method: str = PLAIN
    k: int = 0

    @property
    def path(self) -> Path:
        """`plain` iff nothing is drafted."""
        return "plain" if self.k == 0 else "speculative"

    @property
    def label(self) -> str:
        """The part after the backend: `plain` or `<method>-k<k>`."""
        return PLAIN if self.k == 0 else f"{self.method}-k{self.k}"

    def __str__(self) -> str:
        return f"{self.backend}/{self.label}"

    @classmethod
    def parse(cls, name: str, backend: str | None = None) -> Arm:
        """Read `<backend>/<label>`, or a label alone where `backend` is given. Raises ValueError with the form."""
        where, slash, label = name.rpartition("/")
        if not slash:
            where = backend or ""
        if not where:
            raise ValueError(f"arm {name!r}: expected <backend>/plain or <backend>/<method>-k<k>")
        if label == PLAIN:
            return cls(where)
        method, dash, digits = label.rpartition("-k")
        if not (dash and method and digits.isdecimal() and 1 <= int(digits) <= 64):
            raise ValueError(f"arm {name!r}: expected <backend>/plain or <backend>/<method>-k<k> with k from 1 to 64")
        return cls(where, method, int(digits))


class Identity(msgspec.Struct, frozen=True):
    """Who asks: the API key (never the secret) and what it may do."""

    key_id: str
    """`anonymous` on loopback with no keys created."""
    name: str
    role: Literal["app", "operator"]
    may_force: bool
    """Whether `x-breakeven-path`, `x-breakeven-arm` and `speculation` are obeyed."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class GenerateRequest(msgspec.Struct):
    """A validated OpenAI request. `body` is the client's JSON object, verbatim: unknown fields pass through."""

    request_id: str
    endpoint: Endpoint
    body: dict[str, Any]
    model: str
    stream: bool
    include_usage: bool
    """Whether the client asked for a usage chunk (`stream_options.include_usage`)."""
    identity: Identity
    arrived: float
    """`time.perf_counter()` when the request was read: the origin of TTFT, overhead and E2E."""
    arrived_at: float
    temperature: float
    max_tokens: int | None
    n: int = 1
    declared_task: str | None = None
    path_wish: PathWish = "auto"
    arm_wish: Arm | None = None
    debug: bool = False
    """`x-breakeven-debug: 1`: leave `metrics` in the response."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Request headers in lower case that a policy may look at (`x-*` and `user-agent`; never credentials)."""
    raw: bytes = b""
    """The client's bytes, of which `body` is the decoded form: forwarded without encoding them again where possible."""
    speculation: Speculation | None = None
    """The client's own `speculation`, where its key may set it."""
    record_id: str = ""
    """Unique id of the record: `request_id` unless a client sends the same one twice."""
    application: str = ""
    """Which application asks, where it is one of those told apart below its task (`gateway.applications`)."""


class Classification(msgspec.Struct, frozen=True):
    """The task that a request was taken for, how sure that is and what it rests on."""

    task: str
    confidence: float
    source: Literal["declared", "signal", "text", "fallback"]
    signals: dict[str, Any] = {}
    """Named facts about the request (JSON values): `tools`, `response_format`, `language`, `copy_overlap`, …"""
    micros: float = 0.0


class CellKey(msgspec.Struct, frozen=True, order=True):
    """Where a statistic belongs (design, "The rule"). Bands as in `gateway/bands.py`."""

    backend: str
    epoch: str
    method: str
    k: int
    task: str
    temperature: str
    context: str
    load: int

    def encode(self) -> str:
        """One line without spaces, for Redis keys and JSON."""
        where = (self.backend, self.epoch, self.method, str(self.k))
        return "|".join((*where, self.task, self.temperature, self.context, str(self.load)))

    @classmethod
    def decode(cls, text: str) -> CellKey:
        """Undo `encode`. Raises ValueError."""
        backend, epoch, method, k, task, temperature, context, load = text.split("|")
        return cls(backend, epoch, method, int(k), task, temperature, context, int(load))


class BackendState(msgspec.Struct, frozen=True):
    """What the gateway knows of one backend at this moment; kept current in the background."""

    name: str
    kind: str
    healthy: bool
    arms: tuple[Arm, ...]
    """Arms that the policy names and the backend can serve now."""
    model: str
    max_model_len: int | None
    epoch: str
    has_tool_template: bool | None
    per_request_stats: bool
    """Whether responses carry `metrics.speculative_decoding`."""
    per_request_switch: bool
    """Whether one process serves several arms (ours) or speculation is fixed at launch."""
    adaptive: bool
    """Whether it obeys `speculation.adaptive`."""
    running: int
    """Sequences decoding there now, this gateway's own in flight included."""
    waiting: int = 0
    kv_used: float | None = None
    """Share of its cache for keys and values in use, where it says; of several servers the mean."""
    detail: str = ""
    """Why it is not healthy."""
    warming: bool = False
    """Whether its process has started anew and served next to nothing yet."""
    version: str = ""
    """Version of the engine behind it, where it says."""
    draft: str = ""
    """The draft model it has loaded, where it says."""
    images: bool | None = None
    """Whether it sees images; None: it does not say."""


class Decision(msgspec.Struct):
    """Which arm a request takes, and why, with the numbers that decided."""

    arm: Arm
    reason: str
    """One ASCII line: `speculative engine/ngram-k4: a 2.91 > 1 + 0.00 + 0.21 (412 rounds, gain 2.4x)`."""
    state: str
    """`ok`, `no_data`, `stale`, `probe`, `holdout`, `forced`, `veto`, `p99`, `policy`, `fallback`."""
    rule: str
    """The rule's name in the policy."""
    policy: str
    """The policy's content hash."""
    numbers: dict[str, Any] = msgspec.field(default_factory=dict)
    """`a`, `z`, `alpha`, `beta`, `break_even`, `gain`, `rounds`, `requests`, … (JSON values; null where unknown)."""
    vetoes: list[str] = msgspec.field(default_factory=list)
    speculation: Speculation | None = None
    """What goes upstream to a backend that switches per request."""
    load: int = 1
    """Running sequences at the backend when decided, this one included."""
    waiting: int = 0
    """Sequences in its queue then."""
    plain_s: float | None = None
    """Expected T_plain of this request at that load and context, seconds a token."""
    propensity: float = 1.0
    """Probability with which this arm was drawn (holdout and probes)."""
    holdout: float = 0.0
    """Share of requests like this one that the holdout keeps on a fixed arm; 0 where it could have kept none."""
    incumbent: str = ""
    """The arm that the statistics prefer, where it is not the one taken."""
    priority: int | None = None
    """The rule's priority, where the backend takes one."""


class Spec(msgspec.Struct):
    """Acceptance and cost of one response, from whatever the backend reports. Seconds are sums."""

    rounds: int
    drafted: int
    accepted: int
    histogram: list[int]
    undrafted: int | None = None
    draft_s: float | None = None
    verify_s: float | None = None
    plain_s: float | None = None
    rounds_by_k: dict[str, int] = msgspec.field(default_factory=dict)
    switches: int = 0
    batch_mean: float | None = None
    step_emitted: list[int] = msgspec.field(default_factory=list)
    step_drafted: list[int] = msgspec.field(default_factory=list)
    estimated: bool = False
    """True where it was attributed from server-wide counters rather than reported for this response."""
    decode_s: float | None = None
    """From the first token to the last by the backend's own clock, where it tells no more of its steps."""


class RequestRecord(msgspec.Struct):
    """Everything that is kept of one request: counters, a database row, latency buckets. No prompt, no completion.

    The text of those requests whose rule says `store` goes another way (`gateway.tap`).
    """

    request_id: str
    at: float
    """Unix time of arrival."""
    endpoint: Endpoint
    model: str
    key_id: str
    task: str
    confidence: float
    source: str
    arm: Arm
    """The arm really taken."""
    epoch: str
    decision: Decision
    stream: bool
    temperature: float
    status: int
    """HTTP status sent; 499 when the client left."""
    error_code: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    overhead_s: float
    """Arrival → request sent upstream."""
    ttft_s: float | None
    tpot_s: float | None
    """(last − first)/(n − 1); null below two tokens."""
    e2e_s: float
    itl_s: list[float]
    """Gaps between events, at most 512 of them (first ones)."""
    spec: Spec | None
    fallback: bool = False
    """Whether the chosen arm failed and another answered; then excluded from statistics."""
    warm_up: bool = False
    """Whether it was among the first requests after a restart of the backend; then excluded from statistics."""
    loop: bool = False
    """Whether a repetition loop was seen; then excluded from statistics and counted."""
    conversation: str = ""
    """Keyed hash of the conversation, for stickiness and holdout."""
    signals: dict[str, Any] = msgspec.field(default_factory=dict)
    application: str = ""
    """That of the request; statistics are kept for it besides its task's."""
    end_user: str = ""
    """Keyed hash of OpenAI's `safety_identifier` or `user`; empty where neither was sent."""

    @property
    def is_error(self) -> bool:
        """Whether we or a backend failed it: 5xx, or a stream that broke off. What clients do wrong is none."""
        return self.status >= 500 or (self.status == 200 and self.error_code is not None)
