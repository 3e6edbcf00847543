"""Which JSON schemas the grammar library honours in full. Called by `engine/grammar.py` before it compiles one.

What it would ignore or approximate is refused, so that an answer always satisfies the whole schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from engine.errors import RequestRejected

_HONOURED = {
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "definitions", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum",
    "oneOf", "pattern", "prefixItems", "properties", "required", "type",
}  # fmt: skip
_ANNOTATIONS = {
    "$anchor", "$comment", "$id", "$schema", "default", "deprecated", "description", "discriminator", "example",
    "examples", "nullable", "readOnly", "strict", "title", "writeOnly",
}  # fmt: skip
_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
_REGEX_BEYOND = re.compile(r"\(\?[=!<]|\\[bBAZzpP1-9]")
"""Look-around, word boundaries, back-references, Unicode classes."""
_LENGTHS = ("minItems", "maxItems", "minLength", "maxLength")


def check_schema(schema: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the schema as the grammar library wants it. Raises RequestRejected naming what cannot be honoured."""
    root = _Checker(schema).visit(schema, "")
    if not isinstance(root, dict):
        raise _refusal("", "expected an object")
    return root


def _refusal(path: str, reason: str) -> RequestRejected:
    place = f"response_format.json_schema.schema{path}"
    return RequestRejected(f"{place}: {reason}", param="response_format")


class _Checker:
    """Walks one schema, copying it."""

    def __init__(self, root: Any) -> None:  # noqa: ANN401
        self._root = root

    def visit(self, node: Any, path: str) -> Any:  # noqa: ANN401
        """Return a copy in which objects without any word on their properties are open."""
        if isinstance(node, bool):
            if not node:
                raise _refusal(path, "`false` allows no value at all")
            return node
        if not isinstance(node, dict):
            raise _refusal(path, f"expected an object or a boolean, got {type(node).__name__}")
        for key in node:
            if key not in _HONOURED and key not in _ANNOTATIONS and not key.startswith("x-"):
                raise _refusal(f"{path}.{key}", "this keyword cannot be enforced while decoding")
        self._check_values(node, path)
        copy = {key: value for key, value in node.items() if key in _HONOURED}
        copy.update(self._children(node, path))
        if _is_object(node) and not {"properties", "additionalProperties"} & node.keys():
            copy["additionalProperties"] = True
        return copy

    def _children(self, node: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
        for key in ("properties", "$defs", "definitions"):
            if key in node:
                members = self._expect(node, key, dict, path)
                yield key, {name: self.visit(one, f"{path}.{key}.{name}") for name, one in members.items()}
        for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            if key in node:
                parts = self._expect(node, key, list, path)
                yield key, [self.visit(one, f"{path}.{key}[{at}]") for at, one in enumerate(parts)]
        for key in ("items", "additionalProperties"):
            if key in node:
                one = node[key]
                yield key, one if isinstance(one, bool) else self.visit(one, f"{path}.{key}")

    def _check_values(self, node: dict[str, Any], path: str) -> None:
        kinds = node.get("type", [])
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind not in _TYPES:
                raise _refusal(f"{path}.type", f"expected one of {', '.join(sorted(_TYPES))}, got {kind!r}")
        for key in _LENGTHS:
            if key in node and (isinstance(node[key], bool) or not isinstance(node[key], int) or node[key] < 0):
                raise _refusal(f"{path}.{key}", f"expected a whole number, got {node[key]!r}")
        self._check_reference(node, path)
        self._check_pattern(node, path)
        if len(node.get("allOf", [])) > 1 or ("allOf" in node and len(node.keys() - _ANNOTATIONS) > 1):
            raise _refusal(f"{path}.allOf", "only a single schema with nothing beside it can be enforced")
        for key in ("anyOf", "oneOf"):
            if key in node and node.keys() & (_HONOURED - {key, "$defs", "definitions"}):
                raise _refusal(f"{path}.{key}", "keywords beside it cannot be enforced together with it")
        if "oneOf" in node and not self._disjoint(self._expect(node, "oneOf", list, path)):
            raise _refusal(f"{path}.oneOf", "its schemas are not clearly disjoint; use anyOf")
        missing = set(node.get("required", [])) - set(node.get("properties", {}))
        if missing:
            raise _refusal(f"{path}.required", f"{', '.join(sorted(map(str, missing)))}: not among properties")

    def _check_reference(self, node: dict[str, Any], path: str) -> None:
        if "$ref" not in node:
            return
        if node.keys() & (_HONOURED - {"$ref", "$defs", "definitions"}):
            raise _refusal(f"{path}.$ref", "keywords beside it cannot be enforced together with it")
        if self._resolve(node["$ref"]) is None:
            raise _refusal(f"{path}.$ref", f"{node['$ref']!r} does not lead to a schema in this document")

    def _check_pattern(self, node: dict[str, Any], path: str) -> None:
        pattern = node.get("pattern")
        if pattern is None:
            return
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise _refusal(f"{path}.pattern", f"not a regular expression ({error})") from error
        if _REGEX_BEYOND.search(pattern) or {"minLength", "maxLength", "format"} & node.keys():
            raise _refusal(f"{path}.pattern", "this pattern cannot be enforced while decoding")

    def _resolve(self, reference: Any) -> Any:  # noqa: ANN401
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        node = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or name not in node:
                return None
            node = node[name]
        return node

    def _disjoint(self, parts: list[Any]) -> bool:
        whole = [self._resolve(part["$ref"]) if isinstance(part, dict) and "$ref" in part else part for part in parts]
        return all(_exclude(left, right) for left, right in combinations(whole, 2))

    @staticmethod
    def _expect(node: dict[str, Any], key: str, kind: type, path: str) -> Any:  # noqa: ANN401
        if not isinstance(node[key], kind):
            word = "an object" if kind is dict else "an array"
            raise _refusal(f"{path}.{key}", f"expected {word}, got {type(node[key]).__name__}")
        return node[key]


def _is_object(node: dict[str, Any]) -> bool:
    kinds = node.get("type", [])
    return "object" in (kinds if isinstance(kinds, list) else [kinds])


def _exclude(left: Any, right: Any) -> bool:  # noqa: ANN401
    """Whether no value satisfies both, as far as types, constants and required constant properties tell."""
    if not isinstance(left, dict) or not isinstance(right, dict):
        return False
    kinds, others = _kinds(left), _kinds(right)
    if kinds and others and not kinds & others:
        return True
    ours, theirs = _values(left), _values(right)
    if ours and theirs and not ours & theirs:
        return True
    both = set(left.get("required", [])) & set(right.get("required", []))
    return any(
        (a := _values(left.get("properties", {}).get(name)))
        and (b := _values(right.get("properties", {}).get(name)))
        and not a & b
        for name in both
    )


def _kinds(node: dict[str, Any]) -> set[str]:
    kinds = node.get("type", [])
    found = set(kinds if isinstance(kinds, list) else [kinds])
    return found | {"integer"} if "number" in found else found


def _values(node: Any) -> set[str]:  # noqa: ANN401
    if not isinstance(node, dict):
        return set()
    values = [node["const"]] if "const" in node else node.get("enum", [])
    return {repr(value) for value in values}
