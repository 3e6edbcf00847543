"""What `breakeven policy simulate` replays: traces from a file, or recorded requests turned into traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.simulation.traces import Trace, read_traces
from gateway.policy import Facts
from gateway.policy.facts import share_of

if TYPE_CHECKING:
    from gateway.db import Replay


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests to replay, with what a policy sees of each."""

    traces: list[Trace]
    facts: list[Facts]
    notes: list[str]
    """What the workload cannot say."""


def from_file(path: Path, method: str, cap: int, batch: int) -> Workload:
    """Read a file of traces. Raises InputError."""
    traces = read_traces(path, method, cap)
    facts = [
        Facts(
            task=trace.seen_task,
            temperature=0.0,
            prompt_tokens=trace.prompt_tokens,
            load=batch,
            share=share_of(trace.id),
        )
        for trace in traces
    ]
    unseen = "traces say task and prompt tokens only: keys, models, headers, time and images are taken as unset"
    return Workload(traces, facts, [unseen])


def from_records(records: Sequence[Replay], method: str, cap: int, longest: int) -> Workload:
    """Turn recorded requests into traces; those without a round of this method say nothing of its acceptance."""
    traces: list[Trace] = []
    facts: list[Facts] = []
    short = 0
    for record in records:
        if record.method != method or not any(record.drafted):
            continue
        trace = trace_of(record, cap)
        traces.append(trace)
        facts.append(_facts(record))
        short += max(record.drafted) < longest
    notes = [f"{len(traces)} of {len(records)} recorded requests drafted with {method}; the others are left out"]
    if short:
        notes.append(
            f"{short} of them were recorded with drafts below {longest} tokens: longer ones count as the recorded ones"
        )
    notes.append("headers are not recorded: rules that look at them are taken not to hold")
    return Workload(traces, facts, notes)


def trace_of(record: Replay, cap: int) -> Trace:
    """Return what rounds at each output position would emit, as far as the recorded rounds tell.

    A fully accepted round would have gone on: it is joined to the next one. Within the joined run a round that starts
    later emits what is left of it. Drafts longer than the recorded ones were never seen: they count as those.
    """
    longest = max(record.drafted, default=0)
    emitted: list[int] = []
    drafted: list[int] = []
    run = room = 0
    steps = list(zip(record.emitted, record.drafted, strict=False))
    for at, (count, draft) in enumerate(steps):
        run += count
        room += draft
        goes_on = draft > 0 and count == draft + 1 and at + 1 < len(steps) and steps[at + 1][1] > 0
        if goes_on:
            room += 1  # the bonus token would have been the next draft token
            continue
        emitted += range(run, 0, -1)
        drafted += [min(longest, max(0, room - offset)) for offset in range(run)]
        run = room = 0
    return Trace(
        id=record.request_id,
        task=record.task,
        seen_task=record.task,
        prompt_tokens=record.prompt_tokens or 0,
        emitted=tuple(emitted[:cap]),
        drafted=tuple(drafted[:cap]),
    )


def _facts(record: Replay) -> Facts:
    return Facts(
        task=record.task,
        key=record.key_id,
        model=record.model,
        adapter=record.model.partition(":")[2],
        temperature=record.temperature,
        prompt_tokens=record.prompt_tokens or 0,
        stream=record.stream,
        at=record.at.timestamp(),
        load=record.load,
        endpoint=record.endpoint,
        share=share_of(record.conversation or record.request_id),
    )
