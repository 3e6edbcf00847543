"""Nodes → the plain values that JSON knows, where a file holds data rather than policy. Pure."""

from __future__ import annotations

import re

from gateway.policy.nodes import Mapping, Node, Scalar

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})([eE][+-]?[0-9]{1,2})?", re.ASCII)


def to_plain(node: Node) -> Json:
    """Return what YAML 1.2's core schema makes of a node: only `true`, `false` and `null` are special words."""
    if isinstance(node, Scalar):
        return _scalar(node)
    if isinstance(node, Mapping):
        return {key.text: to_plain(value) for key, value in node.items}
    return [to_plain(item) for item in node.items]


def _scalar(node: Scalar) -> Json:
    if not node.plain:
        return node.text
    if node.null:
        return None
    if node.text in ("true", "false"):
        return node.text == "true"
    if _INTEGER.fullmatch(node.text):
        return int(node.text)
    return float(node.text) if _NUMBER.fullmatch(node.text) else node.text
