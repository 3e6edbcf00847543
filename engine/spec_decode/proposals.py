"""All drafters of one engine: gives each request the method that it asked for. Called by the core."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from engine.config import EngineConfig
from engine.kv_cache import KVPool
from engine.model_runner import make_runner
from engine.models import LoadedModel
from engine.sampler import Draft, SamplerState
from engine.sequence import Sequence as Seq
from engine.spec_decode.draft_model import DraftModelProposer
from engine.spec_decode.eagle import EagleProposer
from engine.spec_decode.eagle_layer import EagleLayer
from engine.spec_decode.head_file import check_head, find_head, read_head
from engine.spec_decode.hybrid import HybridProposer
from engine.spec_decode.ngram import NgramProposer
from engine.spec_decode.prediction import PredictionFollower
from engine.spec_decode.proposer import Proposer
from engine.spec_decode.suffix import SuffixProposer, SuffixStore
from engine.spec_decode.synthetic import SyntheticProposer


def _eagle(config: EngineConfig, target: LoadedModel) -> tuple[EagleProposer | None, str | None]:
    path = find_head(config.draft_head, target.name)
    if path is None:
        return None, None
    head = read_head(path)
    check_head(head, target, str(path))
    layer = EagleLayer(head, target)
    pool = KVPool(layer.kv_shape, config.kv_tokens)
    label = f"eagle-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
    return EagleProposer(layer, pool, vocab_size=target.vocab_size, chunk=max(512, config.prefill_chunk)), label


class Proposals:
    """The drafters by method name, and Predicted Outputs in front of them."""

    def __init__(self, config: EngineConfig, target: LoadedModel, draft: LoadedModel | None) -> None:
        """Raises ModelError where the draft head cannot be used with this target."""
        self._past = SuffixStore(config.suffix_store_tokens)
        self._prediction = PredictionFollower()
        self._proposers: dict[str, Proposer] = {"ngram": NgramProposer(), "suffix": SuffixProposer(self._past)}
        if config.synthetic_acceptance is not None:
            self._proposers = {"ngram": SyntheticProposer(), "suffix": SyntheticProposer()}
        if draft is not None:
            together = config.together(draft.device.type)
            runner = make_runner(draft, static=together > 0)
            self._proposers["draft_model"] = DraftModelProposer(
                runner,
                KVPool(runner.kv_shape, config.kv_tokens, together=together),
                vocab_size=target.vocab_size,
                max_len=draft.max_len,
                chunk=config.prefill_chunk,
            )
        self._eagle, self.head = _eagle(config, target)
        """The feature-fed head, and its name and hash; None without one."""
        self.taps = () if self._eagle is None else self._eagle.taps
        """Layers of the target whose outputs `observe` is to be shown; none without a head."""
        if self._eagle is not None:
            self._proposers["eagle"] = self._eagle
        drafter = self._proposers.get("eagle", self._proposers.get("draft_model"))
        if drafter is not None:
            self._proposers["hybrid"] = HybridProposer(drafter)

    @property
    def methods(self) -> list[str]:
        """Names of the methods on offer."""
        return list(self._proposers)

    def propose(self, wants: Sequence[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        """Return a draft for each `(sequence, state, k)`, in order; empty where k is 0 or there is no guess."""
        drafts = [Draft([]) for _ in wants]
        by_method: dict[str, list[int]] = {}
        for at, (sequence, state, k) in enumerate(wants):
            if k < 1:
                continue
            if sequence.request.prediction_ids:
                drafts[at] = self._prediction.propose(sequence, k)
            if not drafts[at].tokens and state.grammar is not None:
                drafts[at] = Draft(state.grammar.forced(k))
            if not drafts[at].tokens:
                by_method.setdefault(sequence.request.speculation.method, []).append(at)
        for method, places in by_method.items():
            found = self._proposers[method].propose([wants[at] for at in places])
            for at, draft in zip(places, found, strict=True):
                drafts[at] = draft
        for (_, state, _), draft in zip(wants, drafts, strict=True):
            if state.grammar is not None and draft.tokens:
                draft.cut(state.grammar.allowed(draft.tokens))
        return drafts

    def observe(self, parts: Sequence[tuple[Seq, torch.Tensor]]) -> None:
        """Show the head what the target has computed; see `engine.spec_decode.proposer.Observer`."""
        if self._eagle is not None:
            self._eagle.observe(parts)

    def take_for_read(self, method: str, sequences: Sequence[Seq]) -> None:
        """Let a draft model count these texts as read without reading them: only their length matters to a profile."""
        proposer = self._proposers[method]
        if isinstance(proposer, (DraftModelProposer, EagleProposer, HybridProposer)):
            for sequence in sequences:
                proposer.take_for_read(sequence)

    def release(self, sequence: Seq) -> None:
        """Forget a request that has ended; its output may serve later requests of its key where that is allowed."""
        for proposer in self._proposers.values():
            proposer.release(sequence.request_id)
        self._prediction.release(sequence.request_id)
        self._past.add(sequence.request.cache_key, sequence.tokens[sequence.num_prompt :])
