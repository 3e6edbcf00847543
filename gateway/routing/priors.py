"""What wider statistics say of an arm beforehand: other tasks, or the task of an application. Pure; for `make_node`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gateway.routing.applications import Finer
from gateway.routing.book import ALL, Book, Kind
from gateway.routing.estimates import ArmKey, Prior, Setting, evidence_at
from gateway.routing.longer import UNSURE, acceptance, tokens_of
from gateway.routing.stats import Pile


def task_priors(
    book: Book, kind: Kind, own: Mapping[str, Pile], offered: Sequence[ArmKey], setting: Setting
) -> dict[ArmKey, Prior]:
    """Return what the other tasks of the backend say about each arm here."""
    priors: dict[ArmKey, Prior] = {}
    totals = book.totals.get(kind[0], {})
    for method, k in offered:
        pile = totals.get(method)
        if pile is None or k not in pile.layout.lengths or kind[1] == ALL:
            continue
        tokens, n, rounds, undrafted, drafted = _sums(pile, k)
        if method in own:
            mine = _sums(own[method], k)
            tokens, n, rounds = tokens - mine[0], n - mine[1], rounds - mine[2]
            undrafted, drafted = undrafted - mine[3], drafted - mine[4]
        ratios = setting.ratios(method, drafted / rounds if rounds > 0 else k)
        if ratios is None or tokens <= 0 or n <= 0.5:
            continue
        r = ((1 + sum(ratios)) * rounds + undrafted) / tokens
        sd = math.hypot(setting.tuning.task_sd * r, setting.tuning.prior_sd / math.sqrt(n))
        priors[method, k] = Prior(max(1e-3, r), sd)
    _add_longer(priors, totals, offered, setting)
    return priors


def _add_longer(
    priors: dict[ArmKey, Prior], totals: Mapping[str, Pile], offered: Sequence[ArmKey], setting: Setting
) -> None:
    """Judge draft lengths that no other task has run from the longest shorter one that others have run."""
    known = dict(priors)
    for method, k in offered:
        base = max((length for name, length in known if name == method and length < k), default=None)
        if (method, k) in known or base is None:
            continue
        ratios, shorter = setting.ratios(method, k), setting.ratios(method, base)
        if ratios is None or shorter is None:
            continue
        chances = acceptance(totals[method], setting.tuning.optimistic_prior)
        (emitted, full), (more, _) = tokens_of(chances, base), tokens_of(chances, k)
        factor = (1 + sum(ratios)) / (1 + sum(shorter)) * emitted / more
        r = known[method, base].r * factor
        priors[method, k] = Prior(r, math.hypot(known[method, base].sd * factor, UNSURE * full * (k - base) / more * r))


def application_priors(
    task: Mapping[str, Pile], offered: Sequence[ArmKey], setting: Setting, finer: Finer
) -> dict[ArmKey, Prior]:
    """Return what the task says about each arm of one of its applications."""
    known = evidence_at(task, offered, setting, {}).arms
    return {arm.key: Prior(arm.r, math.hypot(arm.se, finer.spread * arm.r)) for arm in known if arm.requests > 0}


def _sums(pile: Pile, k: int) -> tuple[float, float, float, float, float]:
    """Return tokens, requests, rounds, undrafted steps and drafted tokens of the requests that tell of `k`."""
    told = pile.told(k)
    counts = told.at[k]
    return told.tokens, told.requests, counts.rounds, counts.undrafted, counts.drafted
