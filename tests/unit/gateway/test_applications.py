"""Which application a request comes from."""

from __future__ import annotations

from gateway.applications import LEAST, MOST, Applications, application_of
from gateway.types import GenerateRequest
from tests.unit.gateway.routing.build import request


def asked(system: str) -> GenerateRequest:
    return request(body={"messages": [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]})


def test_key_and_system_prompt_make_an_application() -> None:
    names = [application_of(one) for one in (asked("a"), asked("b"), request(), request(body={"messages": "broken"}))]
    assert len(set(names)) == 3, "without a system prompt the key alone counts"
    assert application_of(asked("a")) == names[0]


def test_only_frequent_ones_are_followed_and_only_where_there_are_several() -> None:
    known = Applications()
    assert {known.of(asked("a"), "code") for _ in range(5 * LEAST)} == {""}, "the only one"
    told = [known.of(asked("b"), "code") for _ in range(LEAST)]
    assert told == [*[""] * (LEAST - 1), application_of(asked("b"))]
    assert known.of(asked("a"), "code") == application_of(asked("a"))
    assert known.of(asked("a"), "chat") == ""


def test_prompts_that_are_never_the_same_neither_fill_memory_nor_count() -> None:
    known = Applications()
    for i in range(2000):
        assert known.of(asked(f"It is second {i}"), "code") == ""
        known.of(asked(f"app {i % 2}"), "code")
    assert len(known._counts["code"]) <= MOST
    assert known.of(asked("app 0"), "code") != ""
