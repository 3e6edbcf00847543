"""JSON answers satisfy their schema on both paths; what cannot be enforced is refused with its place."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import torch

from engine.errors import RequestRejected
from engine.grammar import GrammarCompiler
from engine.json_schema import check_schema
from tests.fixtures.core import Answer, make_core, noisy_copy, random_model, request, run

WORD = {"type": "string", "maxLength": 4}
AGE = {"type": "integer", "minimum": 0, "maximum": 120}
POINT = {"type": "object", "properties": {"x": {"const": 1}, "y": {"type": "null"}}, "required": ["x"]}
CODE = {"type": "string", "pattern": "^[A-C]{2}-[0-9]{3}$"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {"name": WORD, "age": AGE, "ok": {"type": "boolean"}},
        "required": ["name", "age", "ok"],
        "additionalProperties": False,
    },
    "array": {"type": "array", "items": {"enum": ["red", "green", 3, None]}, "minItems": 2, "maxItems": 4},
    "nested": {
        "type": "object",
        "properties": {"point": {"$ref": "#/$defs/point"}, "tags": {"type": "array", "items": WORD, "maxItems": 2}},
        "required": ["point"],
        "$defs": {"point": POINT},
    },
    "any of": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "null"}, "maxItems": 3}]},
    "pattern": {"type": "object", "properties": {"id": CODE}, "required": ["id"]},
    "date": {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]},
    "one of": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"enum": [1]}}, "required": ["kind", "n"]},
            {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
        ]
    },
}  # fmt: skip


def answers(schema: dict[str, Any], **params: Any) -> dict[str, Answer]:
    loaded = random_model("llama", seed=2)
    core = make_core(loaded, noisy_copy(loaded))
    arms = [("plain", 0), ("ngram", 4), ("suffix", 3), ("draft_model", 4), ("draft_model", 1)]
    asked = [
        request(f"{method}{k} {seed}", [20 + seed, 30, 40], method=method, k=k, seed=seed, grammar=schema, **params)
        for seed in range(4)
        for method, k in arms
    ]
    return run(core, asked)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_satisfies_its_schema(name: str) -> None:
    schema = SCHEMAS[name]
    for request_id, answer in answers(schema, temperature=1.2, max_tokens=120).items():
        assert answer.finish_reason == "stop", request_id
        jsonschema.validate(json.loads(answer.text), schema)


@pytest.mark.parametrize("name", ["flat", "nested"])
def test_greedy_answers_are_the_same_on_both_paths(name: str) -> None:
    got = answers(SCHEMAS[name], temperature=0.0, max_tokens=120)
    for seed in range(4):
        assert len({answer.text for request_id, answer in got.items() if request_id.endswith(f" {seed}")}) == 1


def test_forced_text_is_proposed_and_accepted() -> None:
    got = answers(SCHEMAS["flat"], temperature=1.0, max_tokens=120)
    spec = got["ngram4 0"].metrics.speculative_decoding
    assert spec.num_accepted_draft_tokens >= len('"name": "') - 2
    assert got["plain0 0"].metrics.speculative_decoding.num_spec_steps == 0


def test_any_object() -> None:
    bias = dict.fromkeys(range(3, 259), -100.0) | dict.fromkeys((92, 126), 5.0)  # `}` and `"`-like ends soon
    for answer in answers({}, temperature=1.0, max_tokens=60, logit_bias=bias).values():
        assert answer.text.startswith("{")
        if answer.finish_reason == "stop":
            assert isinstance(json.loads(answer.text), dict)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, r"schema\.properties\.a\.not: .* enforced"),
        ({"type": "array", "uniqueItems": True}, r"schema\.uniqueItems"),
        ({"type": "integer", "multipleOf": 3}, r"schema\.multipleOf"),
        ({"type": "strnig"}, r"schema\.type: expected one of array, .* got 'strnig'"),
        ({"type": "string", "minLength": -1}, r"schema\.minLength: expected a whole number"),
        ({"$ref": "#/$defs/none"}, r"schema\.\$ref: '#/\$defs/none' does not lead"),
        ({"$ref": "https://example.com/schema"}, r"schema\.\$ref"),
        ({"type": "string", "pattern": "(?=a)b"}, r"schema\.pattern: .* enforced"),
        ({"type": "string", "pattern": "("}, r"schema\.pattern: not a regular expression"),
        ({"allOf": [{"type": "object"}, {"type": "object"}]}, r"schema\.allOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, r"schema\.oneOf: .* use anyOf"),
        ({"type": "object", "required": ["b"]}, r"schema\.required: b"),
        ({"anyOf": [{"type": "null"}], "type": "null"}, r"schema\.anyOf"),
        ({"properties": []}, r"schema\.properties: expected an object, got list"),
        (
            {"type": "object", "properties": {"a": 5}},
            r"schema\.properties\.a: expected an object or a boolean, got int",
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(RequestRejected, match=place) as refusal:
        make_core(random_model("llama")).add(request("a", [5, 6], grammar=schema))
    assert refusal.value.param == "response_format"
    assert refusal.value.status == 400


def test_annotations_are_dropped_and_open_objects_stay_open() -> None:
    assert check_schema({"type": "object", "title": "T", "x-order": 1}) == {
        "type": "object",
        "additionalProperties": True,
    }


def test_a_pattern_may_ask_for_a_control_character() -> None:
    loaded = random_model("llama")
    schema = {"type": "string", "pattern": "^a\nb$"}
    try:
        grammar = GrammarCompiler(loaded, threads=1).start(schema)
    except RequestRejected:
        return  # refusing it is as good
    grammar.accept(loaded.tokenizer.encode('"a', add_special_tokens=False))
    logits = torch.zeros(loaded.vocab_size)
    grammar.mask(logits, [])
    assert bool(torch.isfinite(logits).any())


def test_roll_back_over_drafts() -> None:
    loaded = random_model("llama")
    grammar = GrammarCompiler(loaded, threads=1).start(SCHEMAS["flat"])
    encode = loaded.tokenizer.encode
    grammar.accept(encode('{"name": "ab"', add_special_tokens=False))
    good = encode(', "age": 7', add_special_tokens=False)
    assert grammar.allowed(good) == len(good)
    assert grammar.allowed(encode(', "agx', add_special_tokens=False)) == 5
    assert grammar.allowed(good) == len(good)
    assert grammar.forced(4) == good[:4]
    grammar.accept(good)
    assert grammar.allowed(encode(', "ok": t', add_special_tokens=False)) == 9
