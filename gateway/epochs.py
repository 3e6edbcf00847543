"""Epochs: which process start a statistic belongs to, and what that process is. Pure; for the adapters and routing.

An epoch is written `<kind>.<start>`: `kind` says model, engine version and draft, `start` the process. Statistics of
different starts are never mixed. Those of an earlier start of the same kind are lent to a new one until it has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def epoch_of(what: Sequence[str], start: str) -> str:
    """Return the epoch of a process that `what` describes (model, version, draft, …)."""
    return f"{_hash(what)}.{start}"


def kind_of(epoch: str) -> str:
    """Return what an epoch's process is, "" where the epoch does not say."""
    return epoch.rpartition(".")[0]


def joint(epochs: Sequence[str]) -> str:
    """Return the epoch of several equal servers: another one when any of them starts anew, of the same kind as they."""
    known = [epoch for epoch in epochs if epoch]
    if len(known) < 2:
        return known[0] if known else ""
    kinds = dict.fromkeys(kind_of(epoch) for epoch in known)
    if not all(kinds):
        return _hash(known)
    return f"{next(iter(kinds)) if len(kinds) == 1 else _hash(list(kinds))}.{_hash(known)}"


def _hash(parts: Sequence[str]) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=6).hexdigest()
