"""Checks the values of a request and turns it into the core's terms. Every refusal names the field."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engine.errors import RequestRejected
from engine.messages import Speculation
from engine.sequence import SamplingParams
from engine.server.schemas import ContentPart, Message, ResponseFormat, SamplingFields

PLAIN = Speculation(method="plain", k=0)
MAX_CHOICES = 128
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
_ID_DIGITS = 18
"""Longer numbers are no token ids, and Python refuses to read very long ones."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What this engine process can serve."""

    max_model_len: int
    vocab_size: int
    methods: tuple[str, ...]
    max_k: int


def refuse(param: str, expected: str, got: Any = None, *, shown: bool = True) -> RequestRejected:  # noqa: ANN401 - any JSON value
    """Return the error `param: expected …, got …`."""
    return RequestRejected(f"{param}: expected {expected}" + (f", got {got!r}" if shown else ""), param=param)


def choices_of(body: SamplingFields) -> int:
    """Return how many answers each prompt gets."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MAX_CHOICES:
        raise refuse("n", f"1 to {MAX_CHOICES}", n)
    return n


def check_stream(body: SamplingFields) -> None:
    """Stream options belong to streams."""
    if body.stream_options is not None and not body.stream:
        raise RequestRejected("stream_options: only allowed when stream is true", param="stream_options")


def output_limit(
    body: SamplingFields, prompt_tokens: int, limits: Limits, *, default: int | None, prompt_param: str
) -> int:
    """Return max_tokens cut to what the context window leaves. Raises RequestRejected (`context_length_exceeded`)."""
    name, asked = "max_tokens", body.max_tokens
    newer = getattr(body, "max_completion_tokens", None)
    if newer is not None:
        name, asked = "max_completion_tokens", newer
    if asked is not None and asked < 1:
        raise refuse(name, "at least 1", asked)
    room = limits.max_model_len - prompt_tokens
    if room < 1:
        raise RequestRejected(
            f"This model's maximum context length is {limits.max_model_len} tokens, and the {prompt_param} resulted in "
            f"{prompt_tokens} tokens, which leaves no room for an answer. Please shorten the {prompt_param}.",
            param=prompt_param,
            code="context_length_exceeded",
        )
    wanted = asked if asked is not None else default
    return room if wanted is None else min(room, wanted)


def sampling_of(body: SamplingFields, limits: Limits, *, max_tokens: int, logprobs: int | None) -> SamplingParams:
    """Return the sampling parameters. Raises RequestRejected naming the first field out of range."""
    bias = _logit_bias(body.logit_bias, limits.vocab_size)
    return SamplingParams(
        temperature=_between("temperature", body.temperature, 1.0, 0, 2),
        top_p=_between("top_p", body.top_p, 1.0, 0, 1, above=True),
        top_k=_top_k(body.top_k),
        min_p=_between("min_p", body.min_p, 0.0, 0, 1),
        presence_penalty=_between("presence_penalty", body.presence_penalty, 0.0, -2, 2),
        frequency_penalty=_between("frequency_penalty", body.frequency_penalty, 0.0, -2, 2),
        repetition_penalty=_between("repetition_penalty", body.repetition_penalty, 1.0, 0, 10, above=True),
        logit_bias=bias,
        seed=_seed(body.seed),
        max_tokens=max_tokens,
        stop=_stops(body.stop),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        grammar=grammar_of(body.response_format),
    )


def _between(param: str, value: float | None, default: float, low: float, high: float, *, above: bool = False) -> float:
    if value is None:
        return default
    if not math.isfinite(value) or not low <= value <= high or (above and value == low):
        raise refuse(param, f"{'more than ' if above else ''}{low} to {high}", value)
    return float(value)


def _top_k(value: int | None) -> int:
    """-1 (vLLM's word for off) and 0 are off."""
    if value is None or value == -1:
        return 0
    if value < 0:
        raise refuse("top_k", "-1 or 0 (off) or more", value)
    return value


def _seed(value: int | None) -> int | None:
    if value is not None and not -(2**63) <= value < 2**64:
        raise refuse("seed", "a 64-bit integer", value)
    return value


def _stops(value: str | list[str] | None) -> tuple[str, ...]:
    stops = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    if len(stops) > MAX_STOPS:
        raise refuse("stop", f"at most {MAX_STOPS} strings", len(stops))
    if "" in stops:
        raise refuse("stop", "strings that are not empty", shown=False)
    return stops


def _logit_bias(value: dict[str, float] | None, vocab_size: int) -> dict[int, float]:
    bias = {}
    for key, amount in (value or {}).items():
        if not (key.isascii() and key.isdecimal() and len(key) <= _ID_DIGITS and int(key) < vocab_size):
            raise RequestRejected(
                f"logit_bias: expected token ids from 0 to {vocab_size - 1} as keys, got {key[:40]!r}",
                param="logit_bias",
            )
        bias[int(key)] = _between(f"logit_bias.{key}", amount, 0.0, -100, 100)
    return bias


def grammar_of(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    """Return the JSON schema that the answer must satisfy; `{}` for any JSON object."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {}
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise refuse("response_format.json_schema.schema", "a JSON schema", shown=False)
    return wanted.json_schema.schema or {"type": ["object", "array", "string", "number", "boolean", "null"]}


def speculation_of(wanted: Speculation | None, limits: Limits) -> Speculation:
    """Return what to speculate with; nothing asked for is plain decoding."""
    if wanted is None:
        return PLAIN
    if wanted.method != "plain" and wanted.method not in limits.methods:
        offered = ", ".join(("plain", *limits.methods))
        raise refuse("speculation.method", f"one of {offered}", wanted.method)
    if not 0 <= wanted.k <= limits.max_k:
        raise refuse("speculation.k", f"0 to {limits.max_k}", wanted.k)
    if wanted.method == "plain" and wanted.k != 0:
        raise refuse("speculation.k", "0 with method plain", wanted.k)
    if wanted.adaptive is not None:
        for k, x in wanted.adaptive.break_even:
            if k < 1 or not math.isfinite(x) or x <= 0:
                raise refuse("speculation.adaptive.break_even", "pairs of k >= 1 and x > 0", [k, x])
        for p in wanted.adaptive.prior:
            if not 0 <= p <= 1:
                raise refuse("speculation.adaptive.prior", "probabilities from 0 to 1", p)
    return wanted


def chat_logprobs(logprobs: bool | None, top: int | None) -> int | None:
    """Translate the chat endpoint's two fields."""
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise refuse("top_logprobs", f"0 to {MAX_TOP_LOGPROBS}", top)
    if top is not None and not logprobs:
        raise RequestRejected("top_logprobs: only allowed when logprobs is true", param="top_logprobs")
    return (top or 0) if logprobs else None


def completion_logprobs(logprobs: int | None) -> int | None:
    """Check the completions endpoint's field."""
    if logprobs is not None and not 0 <= logprobs <= MAX_TOP_LOGPROBS:
        raise refuse("logprobs", f"0 to {MAX_TOP_LOGPROBS}", logprobs)
    return logprobs


def text_of(content: str | list[ContentPart] | None, path: str) -> str:
    """Return the text of a message; parts other than text are refused."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for at, part in enumerate(content):
        text = part.text if part.type == "text" else part.refusal if part.type == "refusal" else None
        if part.type not in {"text", "refusal"}:
            raise refuse(f"{path}[{at}].type", "text: this model reads nothing else", part.type)
        if text is None:
            raise refuse(f"{path}[{at}].{part.type}", "a string", shown=False)
        texts.append(text)
    return "".join(texts)


def check_messages(messages: list[Message]) -> None:
    """Refuse an empty conversation and turns without content that need one."""
    if not messages:
        raise refuse("messages", "at least one message", shown=False)
    for at, message in enumerate(messages):
        if message.content is None and message.role != "assistant":
            raise refuse(f"messages[{at}].content", "a string or a list of text parts", None)
