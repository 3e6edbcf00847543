"""Finds tool calls in a model's text as it comes, in the form `<tool_call>{"name": …, "arguments": …}</tool_call>`.

That is the form of the Hermes and Qwen families; other models' calls stay text. Used by `render.py`, one a choice.
"""

from __future__ import annotations

import json
import uuid

from engine.server.wire import FunctionCall, ToolCall

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class ToolCallParser:
    """Splits one answer into content and calls; what is not a call after all comes out as it was written."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._behind_call = False
        self.count = 0
        """Calls found so far."""

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """Take new text and return the content and the calls that are complete now."""
        self._held += text
        content = ""
        calls: list[ToolCall] = []
        while True:
            before, found, after = self._held.partition(CLOSE if self._inside else OPEN)
            if not found:
                break
            if not self._inside:
                content += self._content(before)
            elif call := self._parse(before):
                calls.append(call)
            else:
                content += f"{OPEN}{before}{CLOSE}"
                self._behind_call = False
            self._inside = not self._inside
            self._held = after
        if not self._inside:
            cut = len(self._held) - _beginning(self._held)
            content += self._content(self._held[:cut])
            self._held = self._held[cut:]
        return content, calls

    def _content(self, text: str) -> str:
        """Leave out the white space behind a call, in however many pieces it comes."""
        if self._behind_call:
            text = text.lstrip()
            self._behind_call = not text
        return text

    def flush(self) -> str:
        """Return what is left at the end of the answer: an unfinished call is text."""
        left, self._held = (OPEN if self._inside else "") + self._held, ""
        self._inside = False
        return left

    def _parse(self, text: str) -> ToolCall | None:
        try:
            found = json.loads(text)
            name, arguments = found["name"], found.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        if not isinstance(name, str):
            return None
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        self.count += 1
        self._behind_call = True
        return ToolCall(f"call_{uuid.uuid4().hex[:24]}", FunctionCall(name, written), index=self.count - 1)


def _beginning(text: str) -> int:
    """Return the length of the longest ending of the text with which an opening tag may begin."""
    for size in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if text.endswith(OPEN[:size]):
            return size
    return 0
