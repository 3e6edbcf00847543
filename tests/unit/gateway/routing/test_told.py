"""What a refresh works out for many cells at once is what each of them alone would give."""

import dataclasses
import random

import msgspec
import numpy as np
import pytest

from engine.messages import CostCell, CostTable
from gateway.counted import taken_apart
from gateway.routing import Bucket, build_snapshot
from gateway.routing.book import Book
from gateway.routing.estimates import Setting
from gateway.routing.observe import TIME_UNIT_S
from gateway.routing.snapshot import TYPICAL_CONTEXT, make_node
from gateway.routing.stats import Layout, layout_of
from gateway.routing.tuning import Tuning
from gateway.types import Arm
from tests.unit.gateway.routing.build import ARMS, NOW, buckets_of, costs, record, steps
from tests.unit.gateway.routing.test_estimates import flown

LENGTHS = (2, 4, 8)
KEY = ("engine", "code", "0", "512", 1)


def records(seed=5):
    rng = random.Random(seed)
    runs = [Arm("engine", "ngram", k) for k, n in ((2, 4), (4, 6), (8, 24)) for _ in range(n)]
    fixed = [record(arm, *steps(rng, 0.6, arm.k, rng.randint(20, 90))) for arm in runs]
    return [*fixed, *(flown() for _ in range(4))]


def cells():
    """Buckets of plain and speculative arms with measured times, and one of an application."""
    plain = [record(Arm("engine"), *steps(random.Random(2), 0.0, 0, 30), e2e_s=0.5) for _ in range(3)]
    found = buckets_of([*records(), *plain, record(Arm("engine", "ngram", 4), [3, 5], [4, 4], application="app")])
    return [(bucket.key, bucket.counters, 0.25 + 0.1 * i) for i, bucket in enumerate(found)]


def test_counters_of_many_cells_become_the_vectors_of_each():
    layout = layout_of(LENGTHS)
    many = [counters | {"unheard of": 7} for _, counters, _ in cells()]
    assert len(many) > 2
    for vector, counters in zip(layout.table(many), many, strict=True):
        assert vector.tolist() == layout.vector(counters).tolist()
        assert {name: vector[at] for name, at in layout.index.items() if vector[at]} == {
            name: value for name, value in counters.items() if name in layout.index
        }
    assert layout.table([]).shape == (0, layout.size)


def test_adding_many_buckets_is_adding_each():
    layouts = {("engine", "ngram"): LENGTHS}
    one_by_one, together = Book(layouts), Book(layouts)
    for key, counters, weight in cells():
        one_by_one.add(key, counters, weight, TIME_UNIT_S)
    rows = [(layout_of(LENGTHS if key.k else ()).vector(counters), key, weight) for key, counters, weight in cells()]
    together.add_all([(key, weight, vector) for vector, key, weight in rows], TIME_UNIT_S)
    assert together.requests == pytest.approx(one_by_one.requests)
    assert together.requests["engine", "code", "0", "512"] == pytest.approx(
        sum(weight * counters["n"] for key, counters, weight in cells() if key.task == "code")
    )
    assert (together.loads, together.signatures) == (one_by_one.loads, one_by_one.signatures)
    for places in ("piles", "totals"):
        assert getattr(together, places).keys() == getattr(one_by_one, places).keys()
        for where, piles in getattr(one_by_one, places).items():
            for k, vector in piles["ngram"].by_length.items():
                assert getattr(together, places)[where]["ngram"].by_length[k] == pytest.approx(vector)


def test_measured_times_are_the_weighed_sums_of_the_counters():
    book = Book({("engine", "ngram"): LENGTHS})
    expected: dict[object, list[float]] = {}
    for key, counters, weight in cells():
        book.add(key, counters, weight, TIME_UNIT_S)
        if "@" not in key.task:
            sums = expected.setdefault(key, [0.0] * 6)
            for i, (name, unit) in enumerate([("mn", 0), ("mtok", 0), ("mt", 1), ("mtt", 2), ("mxt", 1), ("mxx", 0)]):
                sums[i] += weight * counters.get(name, 0) * TIME_UNIT_S**unit
    assert {key: list(dataclasses.astuple(cell)) for key, cell in book.measured.items()} == {
        key: pytest.approx(sums) for key, sums in expected.items()
    }
    assert sum(sums[1] for sums in expected.values()) > 100
    seen = [(w * c.get("mn", 0), w * c.get("mtok", 0)) for key, c, w in cells() if "@" not in key.task]
    assert book.output_tokens("code") == pytest.approx(sum(tokens for _, tokens in seen) / sum(n for n, _ in seen))


def told_by_redis(bucket: Bucket) -> Bucket:
    names, values = zip(*bucket.counters.items(), strict=True)
    (counters,) = taken_apart(",".join(map(str, values)).encode(), b"0", [" ".join(names).encode()])
    return msgspec.structs.replace(bucket, counters=counters)


def test_a_snapshot_of_counters_as_redis_tells_them_is_that_of_dicts():
    later = [record(Arm("engine", "ngram", 8), *steps(random.Random(9), 0.05, 8, 60)) for _ in range(30)]
    made = []
    for told in (lambda bucket: bucket, told_by_redis):
        snapshot = None
        for more in ([], later):  # the draft collapses
            merged: dict[tuple[int, object], dict[str, int]] = {}
            for bucket in buckets_of([*records(), *more]):
                into = merged.setdefault((bucket.minute, bucket.key), {})
                for name, value in bucket.counters.items():
                    into[name] = into.get(name, 0) + value
            buckets = [told(Bucket(minute, key, counters)) for (minute, key), counters in merged.items()]
            now = NOW + len(more)
            snapshot = build_snapshot(buckets, {"engine": costs()}, now=now, arms={"engine": ARMS}, previous=snapshot)
        made.append(snapshot)
    dicts, redis = made
    assert [watch.era for watch in redis.eras.watches.tasks.values()] == [1]
    assert dicts.nodes.keys() == redis.nodes.keys()
    for key, node in dicts.nodes.items():
        other = redis.nodes[key]
        assert (node.evidence, node.state, node.flights) == (other.evidence, other.state, other.flights)


def differences(layout: Layout, total, setting, k):
    """r of each length up to `k` and the standard deviation of each difference from it, by matrices."""
    lengths = [length for length in LENGTHS if length <= k]
    weights = np.zeros((len(lengths), len(layout.features)))
    for row, length in enumerate(lengths):
        rounds, drafted = total[layout.index[f"r{length}"]], total[layout.index[f"d{length}"]]
        weights[row, layout.features.index(f"r{length}")] = 1.0 + sum(setting.ratios("ngram", drafted / rounds))
        weights[row, layout.features.index(f"u{length}")] = 1.0
    tokens = total[layout.index["t"]]
    means = weights @ [total[layout.index[feature]] for feature in layout.features] / tokens
    weights[:, layout.features.index("t")] -= means
    covariance = weights @ total[layout.gram] @ weights.T / tokens**2
    return means, [covariance[i, i] + covariance[-1, -1] - 2 * covariance[i, -1] for i in range(len(lengths))]


@pytest.mark.parametrize("load", [1, 8])
def test_differences_between_lengths_are_those_of_the_matrices(load):
    tuning = Tuning()
    snapshot = build_snapshot(buckets_of(records()), {"engine": costs()}, now=NOW, arms={"engine": ARMS})
    evidence = make_node(snapshot, (*KEY[:4], load), None, 0.0).evidence
    pile = snapshot.book.piles[KEY[:4]]["ngram"]
    setting = Setting(snapshot.costs["engine"], load, TYPICAL_CONTEXT["512"], tuning)
    for j, k in enumerate(LENGTHS, start=1):
        total = pile.paired(k)
        assert (total is pile.revealing(k)) == (k != 8)  # those in flight tell of 8 alone
        means, variances = differences(pile.layout, total, setting, k)
        n = pile.told(k, paired=True).effective
        wide = max(1.0, differences(pile.layout, pile.revealing(k), setting, k)[0][-1])
        for i in range(1, j):
            assert evidence.gap[i][j] == pytest.approx(means[i - 1] - means[-1])
            assert evidence.gap[j][i] == -evidence.gap[i][j]
            shrunk = n * n * variances[i - 1] + tuning.paired_requests * (wide * tuning.paired_sd) ** 2
            assert evidence.spread[i][j] == pytest.approx((shrunk / (n + tuning.paired_requests) / n) ** 0.5)


def by_load():
    cells = [(batch, k) for batch in (1, 16) for k in LENGTHS]
    return CostTable([CostCell(b, 0, k, "ngram", 1e-4, 0.01 * (1 + 0.02 * k * b**0.5), 0.01, 50) for b, k in cells])


def made(loads):
    snapshot = build_snapshot(buckets_of(records()), {"engine": by_load()}, now=NOW, arms={"engine": ARMS})
    return [make_node(snapshot, (*KEY[:4], load), None, 0.0) for load in loads]


def test_a_node_made_among_others_is_the_one_made_alone():
    loads = (1, 4, 16)
    together, alone = made(loads), [made((load,))[0] for load in loads]
    for one, other in zip(together, alone, strict=True):
        assert (one.evidence, one.flights) == (other.evidence, other.flights)
    assert together[0].flights["ngram"].gains[8] > 1.1 * together[-1].flights["ngram"].gains[8]
