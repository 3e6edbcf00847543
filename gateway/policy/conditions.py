"""The condition of a rule as a tree of small frozen structs: what `when` says, before `match.py` compiles it. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

TextKey = Literal["task", "key", "app", "model", "adapter", "service_tier", "endpoint"]
NumberKey = Literal["temperature", "prompt_tokens", "load"]
FlagKey = Literal["seed", "images", "stream"]
TEXT_KEYS: tuple[TextKey, ...] = ("task", "key", "app", "model", "adapter", "service_tier", "endpoint")
NUMBER_KEYS: tuple[NumberKey, ...] = ("temperature", "prompt_tokens", "load")
FLAG_KEYS: tuple[FlagKey, ...] = ("seed", "images", "stream")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Node(msgspec.Struct, frozen=True, tag=True):
    """Base of all conditions."""


class Always(Node, frozen=True, tag=True):
    """True for every request."""


class OneOf(Node, frozen=True, tag=True):
    """A text fact equals one of the values, in which `*` stands for any characters."""

    key: TextKey
    values: tuple[str, ...]


class Between(Node, frozen=True, tag=True):
    """A number lies in the interval."""

    key: NumberKey
    low: float = float("-inf")
    high: float = float("inf")
    low_open: bool = False
    high_open: bool = False


class Flag(Node, frozen=True, tag=True):
    """A yes/no fact has this value."""

    key: FlagKey
    value: bool


class Header(Node, frozen=True, tag=True):
    """A request header has one of the values; without values: it is (`present`) or is not there."""

    name: str
    values: tuple[str, ...] = ()
    present: bool = True


class Window(Node, frozen=True, tag=True):
    """The request arrived on one of the days between two minutes of the day, in a time zone."""

    days: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    """0 is Monday."""
    start: int = 0
    end: int = 1440
    """Minutes since midnight, `end` excluded; `start > end` spans midnight and counts to the day it began on."""
    zone: str = "UTC"


class Share(Node, frozen=True, tag=True):
    """The conversation belongs to the first `share` of all conversations (by hash)."""

    share: float


class AllOf(Node, frozen=True, tag=True):
    """Every part is true."""

    parts: tuple[Node, ...]


class AnyOf(Node, frozen=True, tag=True):
    """At least one part is true."""

    parts: tuple[Node, ...]


class Not(Node, frozen=True, tag=True):
    """The part is false."""

    part: Node


Condition = Node
