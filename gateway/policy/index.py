"""Finds the rules that can hold for a request, without testing them one by one. Used by `match.py`; pure.

Every rule becomes one or more rows of simple demands (`rows.py`), every fact a table from its value to the rows that it
leaves (`masks.py`). A look-up ANDs a mask per fact: the lowest bit left is the first rule that holds, however many
there are. What no table can say (two demands of one fact, conditions with very many alternatives) is left to a test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from gateway.policy.conditions import AllOf, Between, Condition, Flag, Header, Not, OneOf, Share, Window
from gateway.policy.facts import Facts
from gateway.policy.masks import Fact, Flags, Headers, Numbers, Times, Words
from gateway.policy.rows import Demand, Row, TooMany, rows_of

if TYPE_CHECKING:
    from gateway.policy.schema import Rule

Test = Callable[[Facts], bool]
_LARGEST = 1 << 27
"""Bits that the table of one number may take (16 MiB); a policy beyond that has its intervals tested."""
_MOST_ROWS = 8192
"""Rows of a policy, unless it has more rules than that: alternatives beyond are not written out."""


class Index:
    """From facts to the rows that may hold, in the order of the rules."""

    def __init__(self, rules: Sequence[Rule], compiled: Callable[[Condition], Test | None]) -> None:
        rows = _written_out(rules)
        spans = Counter(_fact_of(demand.leaf) for _, row in rows for demand in row if _is_span(demand.leaf))
        self._untabled = {key for key, count in spans.items() if 4 * count * len(rows) > _LARGEST}
        self._facts: dict[str, Fact] = {}
        self._headers = Headers()
        self.entries: list[tuple[Test | None, Rule]] = []
        """Of each row: what remains to be tested, and the rule that it stands for."""
        for number, (rule, row) in enumerate(rows):
            self.entries.append((_tested(self._enter(number, row), compiled), rule))
        self.everything = (1 << len(rows)) - 1
        self.enforced = sum(1 << number for number, (rule, _) in enumerate(rows) if rule.mode == "enforce")
        """The rows of rules that are not merely observed."""
        self._headers.finish(self.everything)
        for table in self._facts.values():
            table.finish(self.everything)
        self._tables = [table.at for table in self._facts.values()]
        if self._headers.named:
            self._tables.append(self._headers.at)

    def rows(self, facts: Facts, among: int) -> int:
        """Return those of the rows `among` that may hold, as a mask."""
        for at in self._tables:
            among &= at(facts)
        return among

    def _enter(self, number: int, row: Row) -> list[Demand]:
        """Put a row's demands into the tables, one of each fact; return what they cannot take."""
        rest, taken = [], set()
        for demand in row:
            fact = _fact_of(demand.leaf)
            if not fact or fact in taken or fact in self._untabled:
                rest.append(demand)
                continue
            taken.add(fact)
            if isinstance(demand.leaf, Header):
                self._headers.add(number, demand.leaf, demand.negated)
            else:
                self._table(demand.leaf, fact).add(number, demand.leaf, demand.negated)
        return rest

    def _table(self, leaf: Condition, fact: str) -> Fact:
        if fact not in self._facts:
            self._facts[fact] = _new_table(leaf, fact)
        return self._facts[fact]


def _written_out(rules: Sequence[Rule]) -> list[tuple[Rule, Row]]:
    """Return each rule with each of its alternatives; those that would be too many stay whole."""
    rows: list[tuple[Rule, Row]] = []
    spare = _MOST_ROWS - len(rules)
    for rule in rules:
        found = _alternatives(rule.when)
        if len(found) - 1 > spare:
            found = [(Demand(rule.when, False),)]
        spare -= max(0, len(found) - 1)
        rows += [(rule, row) for row in found]
    return rows


def _alternatives(condition: Condition) -> list[Row]:
    try:
        return rows_of(condition)
    except TooMany:
        return [(Demand(condition, False),)]


def _fact_of(leaf: Condition) -> str:
    """Return the name of the fact that a simple condition looks at, nothing for any other."""
    match leaf:
        case OneOf(key) | Between(key) | Flag(key):
            return key
        case Header(name):
            return f"header {name}"
        case Share():
            return "share"
        case Window():
            return "at"
    return ""


def _is_span(leaf: Condition) -> bool:
    return isinstance(leaf, Between | Share)


def _new_table(leaf: Condition, fact: str) -> Fact:
    if isinstance(leaf, OneOf):
        return Words(attrgetter(fact))
    if isinstance(leaf, Flag):
        return Flags(fact)
    return Times() if isinstance(leaf, Window) else Numbers(fact)


def _tested(rest: list[Demand], compiled: Callable[[Condition], Test | None]) -> Test | None:
    """Return a test of the demands that are in no table."""
    return compiled(AllOf(tuple(Not(demand.leaf) if demand.negated else demand.leaf for demand in rest)))
