"""Varies prompts: typos and lost accents as people make them, another text pasted, two in one (called by `fit`)."""

from __future__ import annotations

import random
import re
import unicodedata
from typing import Any

from cli.training.data import Example, pasted

WINDOW = 400
"""Only this many characters at either end are damaged: the classifier looks at little else."""


GENERIC = (
    "You are a helpful assistant.",
    "You are a helpful, respectful and honest assistant.",
    "You are an AI assistant. Answer in the user's language.",
    "Today is Tuesday. Be concise.",
    "Du bist ein hilfreicher Assistent.",
    "Eres un asistente útil.",
    "Tu es un assistant utile.",
    "Je bent een behulpzame assistent.",
    "Si užitočný asistent.",
    "आप एक सहायक हैं।",
    "你是一个乐于助人的助手。",
)
"""System prompts that say nothing about the task."""
GENERIC_SHARE = 0.2
_ENDS = re.compile(r"[.!?。！？।][\"”»]?\s*|\n")
"""Where a sentence or a line ends, and a text may be cut."""
_WHOLE = 300
"""No shorter text is cut."""
_LEAST = 150


def _typos(text: str, rng: random.Random, rate: float) -> str:
    chars = list(text)
    edges = [i for i in range(len(chars) - 1) if i < WINDOW or i > len(chars) - WINDOW]
    for i in edges:
        if chars[i].isalpha() and rng.random() < rate:
            kind = rng.randrange(4)
            if kind == 0 and chars[i + 1].isalpha():
                chars[i], chars[i + 1] = chars[i + 1], chars[i]
            elif kind == 1:
                chars[i] = ""
            elif kind == 2:
                chars[i] *= 2
            else:
                chars[i] = rng.choice("etaoinsrhldcu")
    return "".join(chars)


def _plain(text: str) -> str:
    return "".join(char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")


def damaged(text: str, rng: random.Random) -> str:
    """Return `text` with one kind of damage."""
    kind = rng.randrange(5)
    if kind <= 2:
        return _typos(text, rng, (0.02, 0.05, 0.08)[kind])
    if kind == 3:
        return text.rstrip(" ?!.。？！") if len(text) < WINDOW else text
    return _plain(text) if text.isascii() is False and ord(max(text)) < 0x250 else _typos(text, rng, 0.03)


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return one request that asks for both in its last turn: length alone must not tell the task."""
    messages = list(first.get("messages", []))
    asked = [message for message in second.get("messages", []) if message.get("role") == "user"]
    if (
        messages
        and asked
        and isinstance(messages[-1].get("content"), str)
        and isinstance(asked[-1].get("content"), str)
    ):
        messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n\n{asked[-1]['content']}"}
    return {**first, "messages": messages}


def noisy(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy of `body` whose user messages are damaged; some get a system prompt that says nothing."""
    messages: list[dict[str, Any]] = []
    roles = [message.get("role") for message in body.get("messages", [])]
    if roles and "system" not in roles and rng.random() < GENERIC_SHARE:
        messages.append({"role": "system", "content": rng.choice(GENERIC)})
    for message in body.get("messages", []):
        content = message.get("content")
        is_user = message.get("role") == "user" and isinstance(content, str)
        messages.append({**message, "content": damaged(content, rng)} if is_user else message)
    return {**body, "messages": messages} if messages else body


def cut(text: str, rng: random.Random) -> str:
    """Return some of the sentences or lines that follow one another in `text`, half the time all of it."""
    if len(text) < _WHOLE or rng.random() < 0.5:
        return text
    ends = [found.end() for found in _ENDS.finditer(text)]
    first = rng.choice([0, *ends[: len(ends) // 2]])
    lasts = [end for end in ends if end >= first + _LEAST]
    return text[first : rng.choice(lasts) if lasts else len(text)].strip()


def swapped(example: Example, rng: random.Random) -> dict[str, Any]:
    """Return an example's request about another document, or a part of one: what is pasted must not tell the task.

    The example must be one that pastes a document.
    """
    return pasted(example.template or example.body, cut(rng.choice(example.texts), rng))
