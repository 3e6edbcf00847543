"""Tokens to text as they come: never half a character, never the beginning of a stop string. Called by the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.sequence import FinishReason, SamplingParams, TokenLogprob

_UNFINISHED = "\ufffd"


class Decoder(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = ..., **kwargs: Any) -> Any:  # noqa: ANN401
        """Return the text of `token_ids`."""


class Detokenizer:
    """Decodes one output incrementally; the pieces joined equal the tokenizer's decoding of all tokens."""

    __slots__ = ("_decoder", "_prefix", "_read", "_tokens")

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._tokens: list[int] = []
        self._prefix = 0
        self._read = 0

    def push(self, token: int) -> str:
        """Take one token and return the characters that are complete now."""
        self._tokens.append(token)
        before = self._decode(self._prefix, self._read)
        now = self._decode(self._prefix, len(self._tokens))
        if len(now) <= len(before) or now.endswith(_UNFINISHED):
            return ""
        self._prefix, self._read = self._read, len(self._tokens)
        return now[len(before) :]

    def flush(self) -> str:
        """Return what is left, incomplete characters as U+FFFD."""
        before = self._decode(self._prefix, self._read)
        now = self._decode(self._prefix, len(self._tokens))
        self._prefix = self._read = len(self._tokens)
        return now[len(before) :]

    def _decode(self, start: int, end: int) -> str:
        if start == end:
            return ""
        text: str = self._decoder.decode(
            self._tokens[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


@dataclass(slots=True)
class Delivery:
    """What may be sent now."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    consumed: int = 0
    """Tokens of the run that belong to the output, EOS and the token that completed a stop string included."""


@dataclass(slots=True)
class _Pending:
    token: int
    logprob: TokenLogprob | None
    start: int
    end: int | None = None
    """Where its characters end in the text; None while they are incomplete."""


class OutputStream:
    """Cuts one output at EOS, stop string and max_tokens, and holds back what may become a stop string."""

    __slots__ = ("_detokenizer", "_eos", "_held", "_params", "_sent", "_stops", "_text", "delivered", "generated")

    def __init__(self, params: SamplingParams, decoder: Decoder, eos_ids: frozenset[int]) -> None:
        self._params = params
        endless = params.ignore_eos and params.grammar is None  # a grammar's answer ends where it is complete
        self._eos = frozenset[int]() if endless else eos_ids
        self._stops = tuple(stop for stop in params.stop if stop)
        self._detokenizer = Detokenizer(decoder)
        self._text = ""
        self._sent = 0
        self._held: list[_Pending] = []
        self.generated = 0
        """Tokens generated, EOS included."""
        self.delivered = 0
        """Tokens delivered: those whose text comes before the stop string, EOS not counted."""

    def push(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> Delivery:
        """Take the tokens of one step and return what may be sent."""
        out = Delivery()
        for at, token in enumerate(tokens):
            out.consumed += 1
            self.generated += 1
            if token in self._eos:
                out.finish_reason = "stop"
                break
            start = len(self._text)
            self._held.append(_Pending(token, logprobs[at] if logprobs else None, start))
            self._append(self._detokenizer.push(token))
            if self._cut_at_stop(start):
                out.finish_reason = "stop"
                self._release(out, len(self._text))
                return out
            if self.generated >= self._params.max_tokens:
                out.finish_reason = "length"
                break
        if out.finish_reason is not None:
            self._finish(out)
        else:
            self._release(out, len(self._text) - self._possible_stop())
        return out

    def abort(self) -> Delivery:
        """End the output without further text."""
        return Delivery(finish_reason="abort")

    def _finish(self, out: Delivery) -> None:
        start = len(self._text)
        self._append(self._detokenizer.flush())
        if self._cut_at_stop(start):
            out.finish_reason = "stop"
        self._release(out, len(self._text))

    def _append(self, text: str) -> None:
        """Add characters that are complete now; they belong to every token since the last ones."""
        if not text:
            return
        self._text += text
        for one in reversed(self._held):
            if one.end is not None:
                break
            one.end = len(self._text)

    def _cut_at_stop(self, start: int) -> bool:
        """Look for a stop string that ends after `start`; cut text and tokens before the first one."""
        found = [place for stop in self._stops if (place := self._text.find(stop, max(0, start - len(stop) + 1))) >= 0]
        if not found:
            return False
        cut = min(found)
        self._text = self._text[:cut]
        self._held = [one for one in self._held if one.start < cut]
        return True

    def _possible_stop(self) -> int:
        """Length of the longest ending of the text that a stop string begins with."""
        text, longest = self._text, 0
        for stop in self._stops:  # looked for by its first character: a long one must not cost a step per character
            start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while 0 <= start < len(text) - longest:
                if stop.startswith(text[start:]):
                    longest = len(text) - start
                    break
                start = text.find(stop[0], start + 1)
        return longest

    def _release(self, out: Delivery, until: int) -> None:
        until = max(until, self._sent)
        out.text = self._text[self._sent : until]
        self._sent = until
        ended = out.finish_reason is not None
        while self._held and (ended or ((end := self._held[0].end) is not None and end <= until)):
            one = self._held.pop(0)
            out.token_ids.append(one.token)
            if one.logprob is not None:
                out.logprobs.append(one.logprob)
        self.delivered += len(out.token_ids)
