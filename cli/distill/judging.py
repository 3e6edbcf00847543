"""One evaluation: held-out answers → acceptance, machine → costs and gain, both → advice. Called by `evaluate`."""

from __future__ import annotations

import hashlib
import platform
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from engine.config import EngineConfig
from engine.distill.acceptance import DraftJudge, HeadJudge, ngram_chances
from engine.distill.corpus import Corpus, Text
from engine.distill.head import FeatureHead
from engine.distill.measure import Cost, Gain, Pair, costs, gain, make_core, pairs
from engine.distill.rounds import Chances, Figures, figures, gain_of, hybrid, walk
from engine.errors import DistillError
from engine.models import LoadedModel
from engine.models.load import load_models
from engine.spec_decode.head_file import check_head, find_head, read_head
from engine.spec_decode.hybrid import LEAST_MATCH
from engine.spec_decode.ngram import MIN_N

KS = (1, 2, 4, 8)
BATCHES = (1, 8)
MIN_GAIN = 1.02
"""Below this a draft is not worth its place: the advice is not to speculate."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Wish:
    """What to judge by."""

    works: tuple[Path, ...]
    prefix: str
    """Only prompts whose id begins so."""
    costs: bool
    pairs: int
    tokens: int
    seed: int


class Advice(msgspec.Struct):
    """Per task: the draft length of highest expected gain, and that gain; k = 0 is plain decoding."""

    batch: int
    k: int
    expected_gain: float


class Amount(msgspec.Struct):
    """How much of the target's own text."""

    answers: int
    tokens: int


class Report(msgspec.Struct):
    """All that is told; the model card repeats it."""

    target: str
    method: str
    draft: str
    """The draft's file or model."""
    draft_sha256: str | None
    licence: str
    """As the draft's file says; empty where it says nothing."""
    dtype: str
    device: str
    threads: int
    machine: str
    data: dict[str, dict[str, Amount]]
    """What --work holds: `train`, `choose` (weights) and `held-out` (what judges here) → temperature."""
    acceptance: dict[str, dict[str, dict[str, list[Figures]]]]
    """Method → temperature → task → one entry for each k."""
    costs: list[Cost]
    expected_gain: dict[str, dict[str, dict[str, dict[str, float]]]]
    """Method → batch → task → k → G, at temperature 0."""
    advice: dict[str, list[Advice]]
    """Task → one entry for each batch, for the judged draft."""
    measured: dict[str, dict[str, Gain]]
    """Method → task → timed gain at batch 1, temperature 0."""
    measured_k: int
    loses_on: list[str]
    """Tasks on which the draft's best expected gain at batch 1 is below MIN_GAIN."""


def judge(config: EngineConfig, wish: Wish, tell: Callable[[str], None]) -> Report:
    """Raises EngineError where data, draft or target cannot be used."""
    torch.set_num_threads(config.num_threads)
    target, draft = load_models(config)
    method, label, digest, licence, judge_of = _draft_of(config, target, draft)
    texts = _held_out(wish)
    tell(f"{len(texts)} held-out answers")
    chances = _chances(texts, method, judge_of)
    acceptance = {name: _by_task(found, texts, wish.seed) for name, found in chances.items()}
    tell("acceptance done")
    head = label if method == "eagle" else None
    found_costs = costs(make_core(target, draft, head, batch=max(BATCHES)), BATCHES, KS) if wish.costs else []
    expected = _expected(acceptance, found_costs)
    advice = _advice(expected.get(method, {}))
    k = _overall_k(expected.get(method, {}))
    measured: dict[str, dict[str, Gain]] = {}
    if wish.pairs:
        tell(f"timing {wish.pairs} prompts at k = {k}")
        core = make_core(target, draft, head, batch=1)
        told = _in_turns([text for text in texts if text.entry.temperature == 0])[: wish.pairs]
        arms = {method: k, "ngram": k, "hybrid": k}
        timed = pairs(core, told, arms, tokens=wish.tokens, tell=lambda: None)
        measured = {name: _gains(found, wish.seed) for name, found in timed.items()}
    return Report(
        target=target.name,
        method=method,
        draft=Path(label).name,
        draft_sha256=digest,
        licence=licence,
        dtype=str(target.dtype).removeprefix("torch."),
        device=str(target.device),
        threads=config.num_threads,
        machine=_machine(),
        data=_data(wish.works),
        acceptance=acceptance,
        costs=found_costs,
        expected_gain=expected,
        advice=advice,
        measured=measured,
        measured_k=k,
        loses_on=[task for task, found in advice.items() if task != ALL and found[0].k == 0],
    )


JudgeOf = Callable[[Text], Chances]


def _draft_of(
    config: EngineConfig, target: LoadedModel, draft: LoadedModel | None
) -> tuple[str, str, str | None, str, JudgeOf]:
    """Method, label, hash, licence and judge of what is to be judged."""
    if draft is not None:
        return "draft_model", draft.name, None, "", DraftJudge(draft, target, max(KS)).chances
    path = find_head(config.draft_head, target.name)
    if path is None:
        raise DistillError(f"no draft comes with {target.name}: give --head or --draft-model")
    file = read_head(path)
    check_head(file, target, str(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    chances = HeadJudge(FeatureHead.of_file(file, target), target, max(KS)).chances
    return "eagle", str(path), digest, file.shape.licence, chances


def _data(works: Sequence[Path]) -> dict[str, dict[str, Amount]]:
    found: dict[str, dict[str, Amount]] = {}
    for entry in (entry for work in works for entry in Corpus(work).entries()):
        amount = found.setdefault(entry.split, {}).setdefault(f"{entry.temperature:g}", Amount(0, 0))
        amount.answers += 1
        amount.tokens += entry.total - entry.prompt
    return found


def _held_out(wish: Wish) -> list[Text]:
    texts = [
        text
        for work in wish.works
        for path in Corpus(work).shards()
        for text in Corpus.texts(path)
        if text.entry.split == "held-out"
        and text.entry.id.startswith(wish.prefix)
        and text.entry.total - text.entry.prompt > max(KS) + 1
    ]
    if not texts:
        raise DistillError("--work: expected held-out answers, found none")
    return texts


def _chances(texts: Sequence[Text], method: str, judge_of: JudgeOf) -> dict[str, list[Chances]]:
    """By method: the draft's, n-gram's, and of both together."""
    own = [judge_of(text) for text in texts]
    lookups = [ngram_chances(text, max(KS), LEAST_MATCH) for text in texts]
    return {
        method: own,
        "ngram": [ngram_chances(text, max(KS), MIN_N) for text in texts],
        "hybrid": [hybrid(found, drafted) for found, drafted in zip(lookups, own, strict=True)],
    }


def _by_task(found: Sequence[Chances], texts: Sequence[Text], seed: int) -> dict[str, dict[str, list[Figures]]]:
    """Temperature → task → figures by k."""
    grouped: dict[str, dict[str, list[Chances]]] = {}
    for chances, text in zip(found, texts, strict=True):
        tasks = grouped.setdefault(f"{text.entry.temperature:g}", {})
        for task in (chances.task, ALL):
            tasks.setdefault(task, []).append(chances)
    return {
        temperature: {
            task: [figures(walk(rows, k, random.Random(seed))) for k in KS]  # noqa: S311 - no secrets
            for task, rows in sorted(tasks.items())
        }
        for temperature, tasks in sorted(grouped.items())
    }


def _expected(
    acceptance: dict[str, dict[str, dict[str, list[Figures]]]], found: Sequence[Cost]
) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """G by method, batch, task and k for greedy requests, from acceptance and measured costs."""
    by_length: dict[tuple[str, int], dict[int, tuple[float, float]]] = {}
    for cost in found:
        by_length.setdefault((cost.method, cost.batch), {})[cost.k] = (cost.alpha, cost.beta)
    expected: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for (method, batch), lengths in by_length.items():
        tasks = acceptance.get(method, {}).get("0", {})
        expected.setdefault(method, {})[str(batch)] = {
            task: {
                str(row.k): round(gain_of(row, lengths, looks=method != "ngram"), 4) for row in rows if row.k in lengths
            }
            for task, rows in tasks.items()
        }
    return expected


def _advice(expected: dict[str, dict[str, dict[str, float]]]) -> dict[str, list[Advice]]:
    advice: dict[str, list[Advice]] = {}
    for batch, tasks in expected.items():
        for task, gains in tasks.items():
            k, best = max(gains.items(), key=lambda pair: pair[1])
            worth = best >= MIN_GAIN
            advice.setdefault(task, []).append(Advice(int(batch), int(k) if worth else 0, best if worth else 1.0))
    return advice


def _overall_k(expected: dict[str, dict[str, dict[str, float]]]) -> int:
    gains = expected.get("1", {}).get(ALL, {})
    return int(max(gains.items(), key=lambda pair: pair[1])[0]) if gains else 2


def _in_turns(texts: Sequence[Text]) -> list[Text]:
    by_task: dict[str, list[Text]] = {}
    for text in texts:
        by_task.setdefault(text.entry.task, []).append(text)
    longest = max(map(len, by_task.values()), default=0)
    return [rows[turn] for turn in range(longest) for rows in by_task.values() if turn < len(rows)]


def _gains(found: Sequence[Pair], seed: int) -> dict[str, Gain]:
    by_task: dict[str, list[Pair]] = {}
    for pair in found:
        for task in (pair.task, ALL):
            by_task.setdefault(task, []).append(pair)
    return {task: gain(rows, seed) for task, rows in sorted(by_task.items())}


def _machine() -> str:
    """The processor's name, for comparisons."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
