"""JSON by construction: tokens that would break the schema are never drawn. Called by the core and the sampler.

The mask belongs to a position: at draft position i it allows what may follow the drafts before i. The matcher is moved
forward over them and rolled back, so that plain and speculative decoding see the same masks.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import xgrammar

from engine.errors import RequestRejected
from engine.json_schema import check_schema
from engine.models import LoadedModel

_ANY_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
_CACHE = 32


class GrammarCompiler:
    """Compiles schemas for one tokenizer; the latest are kept. Built at the first request that needs it."""

    def __init__(self, model: LoadedModel, *, threads: int) -> None:
        self._model = model
        self._threads = threads
        self._compiler: xgrammar.GrammarCompiler | None = None
        self._clean = torch.empty(0, dtype=torch.int32)
        self._kept: OrderedDict[str, xgrammar.CompiledGrammar] = OrderedDict()

    def start(self, schema: dict[str, Any]) -> Grammar:
        """Return a matcher at the beginning of an answer. Raises RequestRejected where that schema cannot be."""
        wanted = check_schema(schema) if schema else _ANY_OBJECT
        key = json.dumps(wanted)
        if key not in self._kept:
            self._kept[key] = self._compile(key)
            while len(self._kept) > _CACHE:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return Grammar(xgrammar.GrammarMatcher(self._kept[key]), self._model, self._clean)

    def _compile(self, text: str) -> xgrammar.CompiledGrammar:
        if self._compiler is None:
            info = xgrammar.TokenizerInfo.from_huggingface(
                self._model.tokenizer, vocab_size=self._model.vocab_size, stop_token_ids=sorted(self._model.eos_ids)
            )
            self._compiler = xgrammar.GrammarCompiler(info, max_threads=self._threads)
            self._clean = _without_control_characters(info, self._model.vocab_size)
        try:
            return self._compiler.compile_json_schema(text, any_whitespace=False)
        except RuntimeError as error:
            reason = str(error).rpartition(": ")[2].strip()
            raise RequestRejected(
                f"response_format.json_schema.schema: cannot be enforced: {reason}", param="response_format"
            ) from error


def _without_control_characters(info: xgrammar.TokenizerInfo, vocab_size: int) -> torch.Tensor:
    """Bits of the tokens without control characters: the library lets them into strings of bounded length."""
    words = xgrammar.allocate_token_bitmask(1, vocab_size)
    bits = words.numpy()[0]
    for token, text in enumerate(info.decoded_vocab):
        if any(byte < 0x20 for byte in text):
            bits[token // 32] &= ~(1 << (token % 32)) if token % 32 < 31 else 0x7FFFFFFF
    return words


class Grammar:
    """Where one answer is in its grammar."""

    __slots__ = ("_ahead", "_clean", "_matcher", "_tokenizer", "_words")

    def __init__(self, matcher: xgrammar.GrammarMatcher, model: LoadedModel, clean: torch.Tensor) -> None:
        self._matcher = matcher
        self._tokenizer: Any = model.tokenizer
        self._clean = clean
        self._words = xgrammar.allocate_token_bitmask(1, model.vocab_size)
        self._ahead: list[int] = []
        """Drafts over which the matcher has been moved beyond the answer."""

    def mask(self, logits: torch.Tensor, before: Sequence[int]) -> None:
        """Set the logits [vocabulary] of tokens that may not follow the answer and `before` to -inf, in place."""
        if not self._move(before):
            raise RuntimeError("the drafts before a verified position satisfy the grammar")
        if self._matcher.is_terminated():
            return
        self._matcher.fill_next_token_bitmask(self._words)
        clean = self._words & self._clean
        if clean.any():  # a pattern may ask for a control character
            self._words = clean
        words = self._words if logits.device.type == "cpu" else self._words.to(logits.device)
        xgrammar.apply_token_bitmask_inplace(logits.unsqueeze(0), words)

    def allowed(self, draft: Sequence[int]) -> int:
        """Return how many of the draft's tokens the grammar allows, from the first."""
        self._move(draft)
        return len(self._ahead)

    def forced(self, limit: int) -> list[int]:
        """Return at most `limit` tokens of the text that must come next, however it is split into tokens."""
        self._move(())
        text = "" if self._matcher.is_terminated() else self._matcher.find_jump_forward_string()
        if not text:
            return []
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)[:limit]
        return tokens[: self.allowed(tokens)]

    def accept(self, tokens: Sequence[int]) -> None:
        """Take emitted tokens into the answer."""
        self._move(tokens)
        self._ahead = []

    def _move(self, drafts: Sequence[int]) -> bool:
        """Move the matcher behind `drafts`, as far as the grammar allows; False where it does not allow all of them."""
        same = 0
        while same < min(len(drafts), len(self._ahead)) and drafts[same] == self._ahead[same]:
            same += 1
        if same < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - same)
            del self._ahead[same:]
        for token in drafts[same:]:
            if self._matcher.is_terminated():
                return True  # beyond the end of the answer nothing is delivered
            if not self._matcher.accept_token(token):
                return False
            self._ahead.append(token)
        return True
