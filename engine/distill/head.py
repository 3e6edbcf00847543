"""The feature-fed head as it is trained: one decoder layer over the target's hidden states (EAGLE, arXiv 2401.15077).

At position t it reads the hidden states of token t, fused, and the embedding of token t + 1, and says what token t + 2
will be. When it drafts further, its own output stands for the hidden state; training unrolls these steps as drafting
does (EAGLE-3's training-time test, arXiv 2503.01840). The output matrix is the target's, cut to the tokens in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

from engine.distill.attend import attend, rotate
from engine.distill.lessons import Batch
from engine.distill.of_target import matrices
from engine.distill.squares import LeastSquares
from engine.models import LoadedModel
from engine.spec_decode.head_file import HeadFile, HeadShape, write_head

RIDGE_LINEAR, RIDGE_ATTENTION, RIDGE_INNER = 0.01, 0.03, 0.03
"""Strength of regularisation in parts of the mean square of what is given."""
_NAMES = ("query", "key", "value", "out", "gate", "up", "down")


class FeatureHead(nn.Module):
    """Trainable weights; embedding and output matrix are the target's and stay as they are."""

    fuse: nn.Linear
    join: nn.Linear
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear
    feature_norm: nn.Parameter
    token_norm: nn.Parameter
    state_norm: nn.Parameter
    attention_norm: nn.Parameter
    inner_norm: nn.Parameter
    last_norm: nn.Parameter
    vocab: torch.Tensor
    _embedding: torch.Tensor
    _output: torch.Tensor
    _frequencies: torch.Tensor

    def __init__(self, shape: HeadShape, embedding: torch.Tensor, output: torch.Tensor, vocab: torch.Tensor) -> None:
        """`embedding` [tokens, width] and `output` [tokens, width] are the target's, `vocab` the ids in use."""
        super().__init__()
        self.shape = shape
        sizes = shape.tensors()
        for name in ("fuse", "join", *_NAMES):
            rows, columns = sizes[f"{name}.weight"]
            self.register_module(name, nn.Linear(columns, rows, bias=False))
        for name, size in sizes.items():
            if name.endswith("_norm"):
                self.register_parameter(name, nn.Parameter(torch.ones(size)))
        self.register_buffer("vocab", vocab)
        self.register_buffer("_embedding", embedding.float(), persistent=False)
        self.register_buffer("_output", output[vocab].float(), persistent=False)
        frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        self.register_buffer("_frequencies", frequencies, persistent=False)

    def begin_as(self, target: LoadedModel) -> None:
        """Start from the target's last layer and norm; the fused state starts as the last layer's output."""
        model: Any = target.model
        decoder = model.get_decoder()
        layer = decoder.layers[-1]
        attention, mlp = layer.self_attn, layer.mlp
        modules = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        modules += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        width = self.shape.width
        with torch.no_grad():
            for name, module in zip(_NAMES, modules, strict=True):
                getattr(self, name).weight.copy_(module.weight)
            self.attention_norm.copy_(layer.input_layernorm.weight)
            self.inner_norm.copy_(layer.post_attention_layernorm.weight)
            self.last_norm.copy_(decoder.norm.weight)
            for name in ("fuse", "join"):
                weight = getattr(self, name).weight
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5 / 2)
                weight[:, -width:] += torch.eye(width)

    @torch.no_grad()
    def fit(self, texts: Sequence[tuple[torch.Tensor, torch.Tensor]], limit: int) -> None:
        """Start instead from the best guess of the next last-layer state that can be had without gradients.

        `texts` are pairs of tokens [n] and features [n − 1, taps · width]; `limit` positions are enough. By least
        squares: first what fuses states and token, then what attention adds to that, then the feed-forward layer.
        """
        chosen, seen = [], 0
        for text in texts:
            chosen.append(text)
            seen += len(text[1])
            if seen >= limit:
                break
        self.out.weight.zero_()
        self.down.weight.zero_()
        self._fit_linear(chosen)
        for module, ridge in ((self.out, RIDGE_ATTENTION), (self.down, RIDGE_INNER)):
            squares = LeastSquares(module.weight.shape[1], self.shape.width)
            for tokens, features in chosen:
                given, guess = self._given(module, tokens, features)
                squares.add(given, self._normed_last(features[1:]) - guess)
            module.weight.copy_(squares.solve(ridge))

    def _fit_linear(self, texts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        width, taps = self.shape.width, len(self.shape.taps)
        size = (taps + 1) * width
        squares = LeastSquares(size, width)
        for tokens, features in texts:
            states = self._taps(features[:-1]).flatten(-2)
            token = self._norm(functional.embedding(tokens[1:-1], self._embedding), self.token_norm)
            squares.add(torch.cat((states, token), dim=-1), self._normed_last(features[1:]))
        last = slice(size - 2 * width, size)
        near = squares.part(last).solve(RIDGE_LINEAR)  # from the last layer and the token alone
        more = squares.less(last, near).part(slice(0, size - width)).solve(RIDGE_LINEAR)  # what the other layers add
        carry = near[:, :width]
        square = carry.T @ carry
        square.diagonal().add_(0.05 * square.diagonal().mean())
        self.fuse.weight.copy_(torch.linalg.solve(square, carry.T @ more))
        self.fuse.weight[:, -width:] += torch.eye(width)
        self.join.weight.copy_(torch.cat((near[:, width:], carry), dim=1))

    def _given(
        self, module: nn.Linear, tokens: torch.Tensor, features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `module` is given on a text [positions, in], and the layer's output as it is so far."""
        kept: list[torch.Tensor] = []
        handle = module.register_forward_pre_hook(lambda _, given: kept.append(given[0][0]))
        embedded = self._norm(functional.embedding(tokens[None, 1:-1], self._embedding), self.token_norm)
        guess = self._layer(embedded, self.fused(features[None, :-1]), [], self._turn(len(tokens) - 2), 0)
        handle.remove()
        return kept[0], guess[0]

    def _taps(self, features: torch.Tensor) -> torch.Tensor:
        """Hidden states [..., taps · width] as [..., taps, width], each normed."""
        taps = features.float().view(*features.shape[:-1], len(self.shape.taps), self.shape.width)
        return functional.rms_norm(taps, (self.shape.width,), eps=self.shape.eps)

    def _normed_last(self, features: torch.Tensor) -> torch.Tensor:
        """The last layer's states [positions, width], normed."""
        return self._taps(features)[:, -1]

    def steps(self, batch: Batch, count: int) -> Iterator[torch.Tensor]:
        """Yield the logits of every step of drafting over a batch; see `unrolled`."""
        device = self._output.device
        yield from self.unrolled(batch.tokens.to(device), batch.features.to(device), count, batch.start)

    def chained(self, batch: Batch, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield logits [n, vocab] of every step and their flat places [n] in [rows, answers].

        A step is taken only where all drafts before it were right: elsewhere verification drops what comes after.
        """
        device = self._output.device
        said = batch.said.to(device).flatten()
        used = (batch.weight.to(device).flatten() > 0) & (said >= 0)

        def right(logits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return (logits.argmax(-1) == said[at]) & used[at]

        for logits, at in self._chain(batch.tokens.to(device), batch.features.to(device), count, batch.start, right):
            chosen = used[at]
            yield logits[chosen], at[chosen]

    def unrolled(
        self, tokens: torch.Tensor, features: torch.Tensor, count: int, start: int = 0
    ) -> Iterator[torch.Tensor]:
        """Yield the logits [rows, length − start, vocab] of 1, 2, …, `count` steps of drafting, all positions at once.

        `tokens` [rows, length] are those that follow the positions of `features` [rows, length, taps · width]; those
        before `start` are only read. What step s says at position t is a draft made from the features of position
        t − s + 1; the first s − 1 from `start` on are void.
        """
        for step, (logits, _) in enumerate(self._chain(tokens, features, count, start, None)):
            void = min(step, tokens.shape[1] - start)
            yield functional.pad(logits.view(len(tokens), -1, logits.shape[-1]), (0, 0, void, 0))

    def _chain(
        self,
        tokens: torch.Tensor,
        features: torch.Tensor,
        count: int,
        start: int,
        goes_on: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Logits and places of each step; the next is taken after the places that `goes_on` chooses (None: all)."""
        embedded = self._norm(functional.embedding(tokens, self._embedding), self.token_norm)
        turn = self._turn(tokens.shape[1])
        past: list[tuple[torch.Tensor, torch.Tensor]] = []
        state = self._layer(embedded, self.fused(features), past, turn, start).flatten(0, 1)
        width = tokens.shape[1] - start
        embedded, turn = embedded[:, start:].flatten(0, 1), (turn[0][start:], turn[1][start:])
        at = torch.arange(len(state), device=state.device)
        while True:
            logits = self.output(self._norm(state, self.last_norm))
            yield logits, at
            if len(past) == count:
                return
            chosen = (at + 1) % width != 0  # not the last of a text
            if goes_on is not None:
                chosen = chosen & goes_on(logits, at)
            at = at[chosen] + 1
            state = self._layer_at(embedded[at], state[chosen], past, turn, at)

    def output(self, normed: torch.Tensor) -> torch.Tensor:
        """Logits [..., vocab] of normed states, by the target's own output matrix."""
        return functional.linear(normed, self._output)

    def fused(self, features: torch.Tensor) -> torch.Tensor:
        """The target's hidden states [..., taps · width] as one state [..., width]."""
        fused: torch.Tensor = self.fuse(self._taps(features).flatten(-2) * self.feature_norm)
        return fused

    def _layer(
        self,
        embedded: torch.Tensor,
        state: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
        turn: tuple[torch.Tensor, torch.Tensor],
        start: int,
    ) -> torch.Tensor:
        """A draft's first step at every position of [rows, length], put out from `start` on."""
        x = self.join(torch.cat((embedded, self._norm(state, self.state_norm)), dim=-1))
        normed = self._norm(x, self.attention_norm)
        x = x[:, start:]
        query = rotate(self._split(self.query(normed[:, start:])), (turn[0][start:], turn[1][start:]))
        past.append(self._grouped(rotate(self._split(self.key(normed)), turn), self._split(self.value(normed))))
        return self._fed(x + self.out(attend(query, past).transpose(1, 2).flatten(-2)))

    def _layer_at(
        self,
        embedded: torch.Tensor,
        state: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
        turn: tuple[torch.Tensor, torch.Tensor],
        at: torch.Tensor,
    ) -> torch.Tensor:
        """A later step, at the flat places `at` of [rows, answers] only: `embedded` and `state` are [n, width]."""
        rows, width = len(past[0][0]), len(turn[0])
        x = self.join(torch.cat((embedded, self._norm(state, self.state_norm)), dim=-1))
        normed = self._norm(x, self.attention_norm)

        def spread(part: torch.Tensor) -> torch.Tensor:
            empty = part.new_zeros(rows * width, part.shape[-1])
            return self._split(empty.index_copy(0, at, part).view(rows, width, -1))

        query = rotate(spread(self.query(normed)), turn)
        past.append(self._grouped(rotate(spread(self.key(normed)), turn), spread(self.value(normed))))
        return self._fed(x + self.out(attend(query, past).transpose(1, 2).flatten(-2).flatten(0, 1)[at]))

    def _fed(self, x: torch.Tensor) -> torch.Tensor:
        normed = self._norm(x, self.inner_norm)
        grown: torch.Tensor = self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return x + grown

    def _grouped(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [rows, kv heads, length, dim], repeated for the heads that share them."""
        group = self.shape.heads // self.shape.kv_heads
        return key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (self.shape.width,), weight.to(x.dtype), self.shape.eps)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, length, heads · dim] → [rows, heads, length, dim]."""
        return x.view(*x.shape[:-1], -1, self.shape.head_dim).transpose(1, 2)

    def _turn(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(torch.arange(length, device=self._frequencies.device).float(), self._frequencies)
        return torch.cat((angles, angles), -1).cos(), torch.cat((-angles, angles), -1).sin()

    @classmethod
    def of_file(cls, head: HeadFile, target: LoadedModel, vocab: torch.Tensor | None = None) -> FeatureHead:
        """A head as read, to be judged, or to be trained on with another vocabulary: no weight depends on it."""
        vocab = head.weights["vocab"].long() if vocab is None else vocab
        made = cls(replace(head.shape, vocab=len(vocab)), *matrices(target), vocab)
        made.load_state_dict({name: tensor for name, tensor in head.weights.items() if name != "vocab"}, strict=False)
        return made.to(target.device)

    def weights(self) -> dict[str, torch.Tensor]:
        """What training changes, by name."""
        return dict(self.named_parameters())

    def write(self, path: Path) -> None:
        """Write the head."""
        write_head(path, self.as_file())

    def as_file(self) -> HeadFile:
        """The weights as they are written."""
        weights = {name: tensor.detach().cpu() for name, tensor in self.state_dict().items()}
        return HeadFile(self.shape, weights)
