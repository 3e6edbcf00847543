"""After a restart: what the process before it had shown is lent, first requests teach nothing, a dead draft is seen."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from gateway.epochs import epoch_of, joint, kind_of
from gateway.routing import Bucket, Snapshot, build_snapshot, observe
from gateway.types import Arm, CellKey, RequestRecord
from tests.unit.gateway.routing.build import ARMS, NOW, backend, buckets_of, costs, record, steps
from tests.unit.gateway.routing.test_decide import ask

FIRST, SECOND = epoch_of(("m", "1.0", "ngram"), "100"), epoch_of(("m", "1.0", "ngram"), "200")
OTHER_DRAFT = epoch_of(("m", "1.0", "another"), "200")
KEEN = Arm("engine", "ngram", 8)


def served(n: int, p: float, epoch: str, seed: int = 7) -> list[RequestRecord]:
    rng = random.Random(seed)
    return [record(KEEN, *steps(rng, p, 8, 60), epoch=epoch) for _ in range(n)]


def built(records: list[RequestRecord], epoch: str, previous: Snapshot | None = None, at: float = NOW) -> Snapshot:
    sums: dict[tuple[int, CellKey], Counter[str]] = {}
    for one in buckets_of(records):
        sums.setdefault((one.minute, one.key), Counter()).update(one.counters)
    return build_snapshot(
        [Bucket(*place, dict(counters)) for place, counters in sums.items()],
        {"engine": costs()},
        now=at,
        arms={"engine": ARMS},
        epochs={"engine": epoch},
        previous=previous,
    )


def test_a_restart_goes_on_from_what_the_process_before_had_shown() -> None:
    snapshot = built(served(200, 0.85, FIRST), SECOND)
    decision = ask(snapshot, backends={"engine": backend(epoch=SECOND)})
    assert (decision.state, decision.arm.k > 0) == ("ok", True)
    requests = snapshot.book.requests["engine", "code", "0", "512"]
    assert requests == pytest.approx(snapshot.tuning.restart_requests)


def test_another_draft_starts_from_nothing() -> None:
    decision = ask(built(served(200, 0.85, FIRST), OTHER_DRAFT), backends={"engine": backend(epoch=OTHER_DRAFT)})
    assert decision.state == "no_data"


@pytest.mark.parametrize("known", [True, False], ids=["gateway that saw both", "gateway that has just started"])
def test_a_draft_that_died_in_the_restart_is_left_within_ten_requests(known: bool) -> None:
    before = served(200, 0.85, FIRST)
    snapshot = built(before, FIRST) if known else None
    arms = []
    for n in range(1, 11):
        snapshot = built(before + served(n, 0.0, SECOND), SECOND, snapshot, NOW + n)
        arms.append(ask(snapshot, backends={"engine": backend(epoch=SECOND)}).arm)
    assert arms[0].k > 0
    assert arms[-1].k == 0


def test_the_first_requests_after_a_restart_are_left_out() -> None:
    (first,) = served(1, 0.85, SECOND)
    assert observe(first)
    assert observe(msgspec.structs.replace(first, warm_up=True)) == []


def test_servers_of_one_pool_have_one_epoch() -> None:
    assert joint([FIRST, ""]) == FIRST
    assert joint([FIRST, SECOND]) != joint([SECOND, SECOND])
    assert kind_of(joint([FIRST, SECOND])) == kind_of(FIRST)
    assert kind_of(joint([FIRST, OTHER_DRAFT])) not in ("", kind_of(FIRST))
    assert kind_of("1") == kind_of(joint(["1", "2"])) == ""
