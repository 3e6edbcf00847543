"""The journal under random use: whatever is written, confirmed, trimmed and reopened, nothing is lost or told twice."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import integers, sampled_from

from gateway.spool import Journal, abandoned
from tests.fixtures.records import make_record

STORES = ("redis", "database")


class JournalMachine(RuleBasedStateMachine):
    """Two stores confirm batches at their own pace; the process may die at any moment."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="bk-spool-"))
        self.journal = Journal(self.folder, "w", limit_bytes=20_000)
        self.written = {}
        self.done = dict.fromkeys(STORES, 0)

    def teardown(self):
        self.journal.close()
        shutil.rmtree(self.folder)

    @rule(count=integers(1, 4))
    def write(self, count):
        batch = [make_record(f"{len(self.written)}-{i}", at=1.0) for i in range(count)]
        self.written[self.journal.append(batch)] = [record.request_id for record in batch]

    @rule(store=sampled_from(STORES), steps=integers(1, 3))
    def confirm(self, store, steps):
        for number, _ in self.journal.read(self.done[store], steps):
            self.journal.confirm(store, number, STORES)
            self.done[store] = number

    @rule()
    def die_and_be_adopted(self):
        self.journal.close()
        [self.journal] = abandoned(self.folder, limit_bytes=20_000)

    @precondition(lambda self: self.written)
    @rule(cut=integers(1, 200))
    def die_while_writing(self, cut):
        """A torn last frame: the batch was never acknowledged, and must neither be told nor break the rest."""
        number = self.journal.append([make_record("torn", at=1.0)])
        self.journal.close()
        segment = max(self.journal.folder.glob("*.log"))
        segment.write_bytes(segment.read_bytes()[:-cut])
        [self.journal] = abandoned(self.folder, limit_bytes=20_000)
        assert self.journal.last == number - 1

    @rule()
    def trim(self):
        self.journal.trim()
        assert self.journal.size <= 20_000 or len(list(self.journal.folder.glob("*.log"))) == 1

    @invariant()
    def each_store_is_told_exactly_what_it_lacks(self):
        for store in STORES:
            done = self.done[store]
            assert self.journal.confirmed(store) == done
            told = {number: [r.request_id for r in batch] for number, batch in self.journal.read(done, 10_000)}
            owed = {number: ids for number, ids in self.written.items() if number > done}
            missing = {number: ids for number, ids in owed.items() if number not in told}
            assert told == {number: ids for number, ids in owed.items() if number in told}
            assert list(told) == sorted(told)
            assert all(number < min(told, default=number + 1) for number in missing)  # only the oldest were trimmed
            assert self.journal.count(done) == sum(map(len, told.values()))

    @invariant()
    def nothing_is_kept_that_every_store_has(self):
        if self.written and min(self.done.values()) >= self.journal.last:
            assert self.journal.size == 0


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


def test_a_journal_in_use_is_not_adopted(tmp_path):
    journal = Journal(tmp_path, "w")
    assert abandoned(tmp_path) == []
    with pytest.raises(BlockingIOError):
        Journal(tmp_path, "w")
    journal.close()
    [adopted] = abandoned(tmp_path)
    adopted.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_missing_tells_what_was_trimmed(tmp_path):
    journal = Journal(tmp_path, "w", limit_bytes=8000)
    for i in range(40):
        journal.append([make_record(f"{i}")])
    assert journal.trim()
    assert journal.missing(0) == journal.first - 1
    assert journal.missing(0) + journal.count(0) == 40
    journal.confirm("redis", 40, ["redis"])
    assert journal.missing(0) == 0
    journal.close()


def test_damage_in_the_middle_costs_the_rest_of_its_segment_only(tmp_path):
    journal = Journal(tmp_path, "w", limit_bytes=16_000)
    for i in range(12):
        journal.append([make_record(f"{i}")])
    journal.close()
    first, *others = sorted(journal.folder.glob("*.log"))
    assert others
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 0xFF
    first.write_bytes(data)
    [journal] = abandoned(tmp_path, limit_bytes=16_000)
    told = [number for number, _ in journal.read(0, 100)]
    assert told[-1] == 12
    assert 0 < len(told) < 12
    journal.close()
