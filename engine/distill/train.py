"""Trains the feature-fed head on a corpus: seeded, resumable, on CPU or GPU. Called by `cli.distill.train`."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from engine.distill.chosen import held_out
from engine.distill.corpus import Corpus
from engine.distill.head import FeatureHead
from engine.distill.learners import FILES, Kind, make_head, read_learner, restore
from engine.distill.lessons import Batch, Batches, Lessons
from engine.distill.standalone import StandaloneDraft
from engine.errors import DistillError
from engine.models import LoadedModel

SAVE_EVERY_S = 60.0
_SHARES = (1.0, 0.3)
"""How far a judged draft is from its beginning: brief training forgets as well, and a mean with it may be better."""
_WARM_UP = 40
_CLIP = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How to train. A resumed run must have the same."""

    kind: Kind
    layers: int
    """Of a standalone draft."""
    epochs: int
    batch_tokens: int
    lr: float
    unroll: int
    """Draft steps that are trained."""
    licence: str
    """Kept in a head's file."""
    begin_with: str | None
    """SHA-256 of the draft's file that is trained further."""
    vocab: int
    hard: float
    """Share of the loss on the target's most likely token; the rest follows its whole distribution."""
    seed: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What the progress bar shows."""

    step: int
    steps: int
    loss: float
    top1: float
    """Share of answer positions at which the first draft is the target's most likely token."""
    held_out: float | None
    """Tokens per round at k = 4 on held-out greedy answers, when last judged."""


class Trainer:
    """One run in one folder: `checkpoint.pt` to go on from, and the draft (`FILES`) as it did best so far."""

    def __init__(
        self,
        target: LoadedModel,
        corpora: Sequence[Corpus],
        out: Path,
        settings: Settings,
        begin_with: Path | None = None,
    ) -> None:
        """Begin, or go on with what the folder holds. Raises DistillError (ModelError for the head to begin with)."""
        self._out = out
        self._settings = settings
        self._device, self._dtype = target.device, target.dtype
        model: Any = target.model
        self._norm: torch.nn.Module = model.get_decoder().norm
        self._train = Lessons(corpora, "train")
        self._judge = Lessons(corpora, "choose")
        if all(item.entry.temperature > 0 for item in self._judge.items):
            raise DistillError("the data has no greedy answers to choose weights by: generate some (temperature 0)")
        torch.manual_seed(settings.seed)
        saved = self._saved()
        vocab = saved["vocab"] if saved else self._train.vocabulary(settings.vocab, target)
        self.draft = self._begin(target, corpora, vocab, begin_with, fresh=not saved)
        self.places = torch.full((target.vocab_size,), -1)
        self.places[self.draft.vocab.cpu()] = torch.arange(len(self.draft.vocab))
        self._weights = list(self.draft.weights().values())
        self._start = {name: weight.detach().clone() for name, weight in self.draft.weights().items()}
        self._optimizer = _optimizer(self._weights, settings.lr)
        self._step = 0
        self.best = 0.0
        """Best tokens per round on held-out greedy answers so far."""
        self._last_held_out: float | None = None
        self._steps = sum(len(self._epoch(number)) for number in range(settings.epochs))
        if saved:
            self._restore(saved)

    def _begin(
        self,
        target: LoadedModel,
        corpora: Sequence[Corpus],
        vocab: torch.Tensor,
        begin_with: Path | None,
        *,
        fresh: bool,
    ) -> FeatureHead | StandaloneDraft:
        chosen = self._settings
        taps = corpora[0].recipe.taps
        draft: FeatureHead | StandaloneDraft
        if fresh and begin_with is not None:
            draft = read_learner(chosen.kind, begin_with, target, taps, vocab)
        elif chosen.kind == "standalone":
            draft = StandaloneDraft(target, chosen.layers, vocab).to(target.device)
        else:
            draft = make_head(target, self._train, taps, vocab, fit=fresh, seed=chosen.seed)
        if isinstance(draft, FeatureHead):
            draft.shape = replace(draft.shape, licence=chosen.licence)
        return draft

    @property
    def answer_tokens(self) -> int:
        """Output tokens that are learnt from in one epoch."""
        return self._train.answer_tokens

    @property
    def coverage(self) -> float:
        """Share of the tokens of answers not trained on that the draft's vocabulary has."""
        told = torch.cat([item.tokens[item.entry.prompt :] for item in self._judge.items])
        return float((self.places[told] >= 0).float().mean())

    def run(self, tell: Callable[[Progress], None], *, judge_every: int, limit_s: float = math.inf) -> bool:
        """Train until the last step or for `limit_s` seconds, by when the learning rate has fallen to its end.

        A later call goes on, with a raised rate where time ended the last. Returns whether all is done.
        """
        started = saved = time.monotonic()
        if self._step == 0:
            self._judge_now()  # what training has to beat
            self.save()
        while self._step < self._steps:
            for batch in self._rest_of_epoch():
                loss, top1 = self._learn(batch, (time.monotonic() - started) / limit_s)
                self._step += 1
                if self._step % judge_every == 0 or self._step == self._steps:
                    self._judge_now()
                tell(Progress(self._step, self._steps, loss, top1, self._last_held_out))
                now = time.monotonic()
                if now - saved > SAVE_EVERY_S:
                    self.save()
                    saved = now
                if now - started > limit_s:
                    self._judge_now()
                    self.save()
                    return self._step >= self._steps
        self.save()
        return True

    def save(self) -> None:
        """Write the checkpoint. Raises DistillError where the disk refuses."""
        state = {
            "settings": asdict(self._settings),
            "weights": self.draft.weights(),
            "optimizer": self._optimizer.state_dict(),
            "vocab": self.draft.vocab,
            "step": self._step,
            "best": self.best,
            "texts": len(self._train.items),
            "start": self._start,
        }
        scratch = self._out / "checkpoint.part"
        try:
            torch.save(state, scratch)
            os.replace(scratch, self._out / "checkpoint.pt")
        except OSError as error:
            raise DistillError(f"{scratch}: cannot be written: {error.strerror}") from error

    def _saved(self) -> dict[str, Any] | None:
        path = self._out / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            there = Settings(**state["settings"])
        except Exception as error:
            raise DistillError(f"{path}: damaged ({error}); delete it to begin again") from error
        if there != self._settings or state["texts"] != len(self._train.items):
            raise DistillError(f"{path}: another run (other options or other data); give another --out, or delete it")
        return state

    def _restore(self, saved: dict[str, Any]) -> None:
        restore(self.draft, saved["weights"])
        self._optimizer.load_state_dict(saved["optimizer"])
        self._start = {name: weight.to(self._device) for name, weight in saved["start"].items()}
        self._step = int(saved["step"])
        self.best = float(saved["best"])

    def _epoch(self, number: int) -> Batches:
        rng = random.Random(f"{self._settings.seed}/{number}")  # noqa: S311 - no secrets
        return self._train.batches(self._settings.batch_tokens, self.places, rng=rng)

    def _rest_of_epoch(self) -> Iterator[Batch]:
        done = 0
        for number in range(self._settings.epochs):
            batches = self._epoch(number)
            if done + len(batches) > self._step:
                return batches.after(self._step - done)
            done += len(batches)
        return iter(())

    def _learn(self, batch: Batch, time_share: float) -> tuple[float, float]:
        """One optimiser step; returns loss and first-draft agreement."""
        share = max(self._step / max(1, self._steps), min(1.0, time_share))
        pace = min(1.0, (self._step + 1) / _WARM_UP) * (1.0 - 0.95 * share)
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.lr * pace
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            loss, agreed = self._loss(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._weights, _CLIP)
        self._optimizer.step()
        return float(loss.detach()), agreed

    def _loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        """Cross-entropy over the steps of all drafts, per draft, and the share of first drafts that were right."""
        total = torch.zeros((), device=self._device)
        wanted = first = torch.empty(0)
        agreed = 0.0
        ahead = batch.ahead.to(self._device).flatten(0, 1)
        for number, (logits, at) in enumerate(self.draft.chained(batch, self._settings.unroll)):
            if number == 0:
                wanted, first = self._wanted(ahead[at]), at
                said = batch.said.to(self._device).flatten()[at]
                agreed = float((logits.argmax(-1) == said).sum() / batch.weight.sum().clamp(min=1.0))
            target = wanted[torch.searchsorted(first, at)] if number else wanted
            total = total + (logits.float().logsumexp(-1) - (target * logits.float()).sum(-1)).sum()
        return total / max(1, len(first)), agreed

    @torch.no_grad()
    def _wanted(self, ahead: torch.Tensor) -> torch.Tensor:
        """What the target says of states [n, width] as probabilities to learn [n, vocab]."""
        logits = self.draft.output(self._norm(ahead.to(self._dtype)).float()).float()
        best = logits.argmax(-1, keepdim=True)
        wanted = torch.softmax(logits, dim=-1).mul_(1.0 - self._settings.hard)
        return wanted.scatter_add_(-1, best, torch.full_like(wanted[..., :1], self._settings.hard))

    def _judge_now(self) -> None:
        """Judge on greedy answers not trained on and keep the weights where they are the best so far."""
        self._last_held_out = 0.0
        for share in _SHARES if self._step else _SHARES[:1]:
            with self._mixed(share):
                found = held_out(self.draft, self._judge, self.places)["all"]
                self._last_held_out = max(self._last_held_out, found)
                if found > self.best:
                    self.best = found
                    self.draft.write(self._out / FILES[self._settings.kind])

    @contextmanager
    def _mixed(self, share: float) -> Iterator[None]:
        """Let the draft be a mean of what it began as and, by `share`, what it is now."""
        now = {name: weight.detach().clone() for name, weight in self.draft.weights().items()}
        try:
            restore(self.draft, {name: torch.lerp(self._start[name], weight, share) for name, weight in now.items()})
            yield
        finally:
            restore(self.draft, now)


def _optimizer(weights: Sequence[torch.Tensor], lr: float) -> torch.optim.AdamW:
    matrices = [weight for weight in weights if weight.dim() > 1]
    vectors = [weight for weight in weights if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.02}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))
