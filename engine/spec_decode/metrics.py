"""What one request's steps did and cost; becomes the response's `metrics`. Called by the core."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.messages import BreakevenMetrics, EngineMetrics, SpeculativeDecodingMetrics

MAX_STEPS = 4096
"""Steps of which the emitted and drafted counts are kept."""


@dataclass(slots=True)
class RequestMetrics:
    """Sums over the decode steps of one request. A round is a step with at least one draft token."""

    histogram: list[int] = field(default_factory=list)
    rounds_by_k: dict[int, int] = field(default_factory=dict)
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    """Rounds that ended with a draft token that the target did not say."""
    undrafted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    plain_s: float = 0.0
    batch_sum: int = 0
    step_emitted: list[int] = field(default_factory=list)
    step_drafted: list[int] = field(default_factory=list)

    @property
    def chance(self) -> float:
        """That a draft token is accepted whose predecessors were, by the rounds so far: a half before the first."""
        return (1 + self.accepted) / (2 + self.accepted + self.rejected)

    def record(self, *, drafted: int, accepted: int, emitted: int, batch: int) -> None:
        """Count one decode step; `accepted` and `emitted` are already cut at the end of the output."""
        self.batch_sum += batch
        if len(self.step_emitted) < MAX_STEPS:
            self.step_emitted.append(emitted)
            self.step_drafted.append(drafted)
        if not drafted:
            self.undrafted += 1
            return
        self.rounds_by_k[drafted] = self.rounds_by_k.get(drafted, 0) + 1
        self.drafted += drafted
        self.accepted += accepted
        self.rejected += accepted < drafted
        self.histogram.extend([0] * (drafted + 1 - len(self.histogram)))
        self.histogram[accepted] += 1

    def charge(self, *, drafted: int, draft_s: float, verify_s: float) -> None:
        """Add the wall time of one step; a plain step in a batch that drafts waits for the drafts of the others."""
        if drafted:
            self.draft_s += draft_s
            self.verify_s += verify_s
        else:
            self.plain_s += draft_s + verify_s

    def report(self, switches: int) -> EngineMetrics:
        """Return the response's `metrics` object."""
        rounds = sum(self.rounds_by_k.values())
        steps = rounds + self.undrafted
        return EngineMetrics(
            SpeculativeDecodingMetrics(
                acceptance_histogram=list(self.histogram),
                num_spec_steps=rounds,
                num_draft_tokens=self.drafted,
                num_accepted_draft_tokens=self.accepted,
                mean_acceptance_length=1 + self.accepted / rounds if rounds else 0.0,
                draft_acceptance_rate=self.accepted / self.drafted if self.drafted else 0.0,
            ),
            BreakevenMetrics(
                draft_s=self.draft_s,
                verify_s=self.verify_s,
                plain_s=self.plain_s,
                rounds_by_k={str(k): n for k, n in sorted(self.rounds_by_k.items())},
                undrafted=self.undrafted,
                switches=switches,
                batch_mean=self.batch_sum / steps if steps else 0.0,
                emitted=self.step_emitted,
                drafted=self.step_drafted,
            ),
        )
