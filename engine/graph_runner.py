"""Decode and verify passes of static shape, replayed as CUDA graphs; prompts run as in the lean runner. For GPUs.

A pass over short rows of the pool's common slab has one of few shapes: a number of slots, of tokens a slot and of
positions in sight. Its inputs go to the device in one transfer from pinned memory and nothing is read back: taking the
next tokens out of the logits is a round's only wait for the device. On a CPU the same code runs without graphs, which
is how it is tested; on a GPU it has not been run yet.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from engine.attention import RowInput
from engine.attention_group import Rule, scores
from engine.kv_cache import KVShape, Slab
from engine.lean_runner import LeanRunner
from engine.models import LoadedModel

COUNTS = (1, 2, 3, 5, 9, 17, 33)
"""Tokens a slot: a pass takes the least that holds its longest row."""
SHORTEST = 256
"""Positions in sight at least; they double from there."""
MAX_SHAPES = 96
"""Shapes of one slab; passes of yet another one run without a graph."""


class GraphRunner(LeanRunner):
    """A lean runner whose short rows run in static shapes."""

    def __init__(self, loaded: LoadedModel, kv_shape: KVShape) -> None:
        super().__init__(loaded, kv_shape)
        self._extend_rotary(loaded.max_len)  # graphs hold the table: it must not move
        self._passes: weakref.WeakKeyDictionary[Slab, dict[tuple[int, int, int], StaticPass]] = (
            weakref.WeakKeyDictionary()
        )

    @torch.inference_mode()
    def forward(self, rows: Sequence[RowInput]) -> torch.Tensor:
        """Run the short rows of the common slab in a static shape and the rows after them as they are."""
        short = next((at for at, row in enumerate(rows) if not _is_short(row)), len(rows))
        found = self._pass_for(rows[:short]) if short else None
        if found is None:
            return super().forward(rows)
        logits, features = found.run(rows[:short])
        for row in rows[:short]:
            row.kv.length += len(row.tokens)
        if short < len(rows):
            rest = super().forward(rows[short:])
            logits = torch.cat((logits, rest))
            if features is not None and self.features is not None:
                features = torch.cat((features, self.features))
        self.features = features
        return logits

    def _pass_for(self, rows: Sequence[RowInput]) -> StaticPass | None:
        slab = rows[0].kv.slab
        if any(row.kv.slab is not slab for row in rows):
            return None
        slots = min(len(slab.rows), _power_of_two(1 + max(row.kv.slot for row in rows)))
        count = next(count for count in COUNTS if count >= max(len(row.tokens) for row in rows))
        seen = max(row.kv.length + len(row.tokens) for row in rows)
        shape = slots, count, min(slab.capacity, max(SHORTEST, _power_of_two(seen)))
        known = self._passes.setdefault(slab, {})
        if shape not in known and len(known) < MAX_SHAPES:
            known[shape] = StaticPass(self, slab, shape)
        return known.get(shape)


class StaticPass:
    """One shape over one slab: its inputs' places, what they give, and the graph from the ones to the others."""

    def __init__(self, runner: LeanRunner, slab: Slab, shape: tuple[int, int, int]) -> None:
        self._runner = runner
        self._store = weakref.proxy(slab)
        self._slots, self._count, self._length = shape
        self._size = self._slots * self._count
        device = runner.kv_shape.device
        on_gpu = device.type == "cuda"
        self._host = torch.zeros((5, self._size), dtype=torch.long, pin_memory=on_gpu)
        self._inputs = torch.zeros((5, self._size), dtype=torch.long, device=device)
        """Token ids, positions, slots to store into, tokens whose logits are wanted, and the rows' tokens in order."""
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        """Reached once the device has read `_host`, which must not change before."""
        self._columns = torch.arange(self._length, device=device)
        self._heads = torch.arange(runner.kv_shape.heads, device=device)
        self._halves = torch.arange(2, device=device).view(2, 1, 1)
        self._graph = torch.cuda.CUDAGraph() if on_gpu else None
        self._captured = False

    def run(self, rows: Sequence[RowInput]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the wanted logits and the tapped features of the rows' tokens, in the rows' order."""
        if self._copied is not None:
            self._copied.synchronize()
        wanted, tokens = self._fill(rows)
        self._inputs.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        if self._graph is None:
            self._compute()
        else:
            if not self._captured:
                self._capture(self._graph)
            self._graph.replay()
        logits = self._logits[self._inputs[3, :wanted]]
        if self._features is None:
            return logits, None
        return logits, self._features[self._inputs[4, :tokens]]

    def _fill(self, rows: Sequence[RowInput]) -> tuple[int, int]:
        """Lay the inputs out and return the numbers of wanted tokens and of tokens.

        Queries of no row look at position 0 of their slot and store into the scrap slot.
        """
        tokens: list[int] = []
        wanted: list[int] = []
        host = self._host
        host[:2] = 0
        host[2] = len(self._store.rows)
        for row in rows:
            start, past, count = row.kv.slot * self._count, row.kv.length, len(row.tokens)
            host[0, start : start + count] = torch.tensor(row.tokens)
            host[1, start : start + count] = torch.arange(past, past + count)
            host[2, start : start + count] = row.kv.slot
            tokens.extend(range(start, start + count))
            wanted.extend(range(start + count - row.num_logits, start + count))
        host[3, : len(wanted)] = torch.tensor(wanted, dtype=torch.long)
        host[4, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        return len(wanted), len(tokens)

    def _capture(self, graph: torch.cuda.CUDAGraph) -> None:
        """Run once so that libraries set themselves up, then record."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            self._compute()
        self._captured = True

    def _compute(self) -> None:
        ids, positions, slots = self._inputs[:3]
        _, all_slots, heads, capacity, _ = self._store.layers[0].shape
        place = (self._halves * all_slots + slots.view(1, -1, 1)) * heads + self._heads
        self._written = (place * capacity + positions.view(1, -1, 1)).flatten()
        self._own = positions.view(self._slots, 1, self._count, 1)
        hidden, self._features = self._runner.hidden(ids, positions, self)
        self._logits = self._runner.logits(hidden)

    def attend(  # noqa: PLR0917 - see `engine.attention.Attending`
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """As `PackedBatch.attend`, every slot taking part."""
        size, heads, dim = query.shape
        kv_heads = key.shape[1]
        store = self._store.layers[layer]
        store.view(-1, dim).index_copy_(0, self._written, torch.stack((key, value)).view(-1, dim))
        group = heads // kv_heads
        folded = query.reshape(self._slots, self._count, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
        seen = self._columns <= self._own
        if window is not None:
            seen = seen & (self._columns > self._own - window)
        mask = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill_(~seen, float("-inf"))
        known = store[:, : self._slots, :, : self._length]
        folded = folded.reshape(self._slots, kv_heads, group * self._count, dim)
        out = scores(folded, known[0], known[1], mask.repeat(1, 1, group, 1), Rule(scale, window, softcap))
        out = out.view(self._slots, kv_heads, group, self._count, dim).permute(0, 3, 1, 2, 4)
        return out.reshape(size, heads * dim)


def _is_short(row: RowInput) -> bool:
    return len(row.tokens) <= COUNTS[-1] and row.kv.slab.fixed


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
