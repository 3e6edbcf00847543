"""Reads the parts that classification looks at out of any JSON body (first step of `Classifier.classify`).

Nothing here raises: a body is the client's, and what is malformed in it is the API's business, not ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

MAX_MESSAGES = 64
"""Messages looked at from the end; a conversation of thousands of turns costs no more than one of 64."""
MAX_PARTS = 64
SYSTEM_ROLES = frozenset(("system", "developer"))
TOOL_ROLES = frozenset(("tool", "function"))
GUIDED = frozenset(("guided_json", "guided_grammar", "guided_regex", "guided_choice", "structured_outputs"))


class Prompt(msgspec.Struct, frozen=True):
    """One request as the classifier sees it."""

    user: str
    """The last user turn, which decides; for completions the prompt."""
    system: str
    before: str
    """The user turn before the last, which informs."""
    reply: str
    """The assistant turn that the last user turn answers."""
    result: str
    """The last tool result, if the conversation ends with one."""
    turns: int
    """User turns among the messages looked at."""
    tools: tuple[Any, ...]
    tool_choice: str | None
    response_format: str | None
    prediction: str
    images: bool
    declared: str | None


def _parts(content: object) -> Iterator[Any]:
    yield from content[:MAX_PARTS] if isinstance(content, list) else ()


def text_of(content: object) -> str:
    """Return the text of a message's content: a string, or the text parts of a list; anything else is empty."""
    if isinstance(content, str):
        return content
    texts = []
    for part in _parts(content):
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)


def _has_image(content: object) -> bool:
    return any(isinstance(part, dict) and part.get("type") in ("image_url", "input_image") for part in _parts(content))


def _format_of(body: Mapping[str, Any]) -> str | None:
    value = body.get("response_format")
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "text":
        return kind
    if GUIDED.isdisjoint(body):
        return None
    return next((name for name in sorted(GUIDED) if body.get(name)), None)


def _choice_of(body: Mapping[str, Any]) -> str | None:
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        return "named"
    return choice if isinstance(choice, str) else None


def _declared_in(body: Mapping[str, Any]) -> str | None:
    metadata = body.get("metadata")
    task = metadata.get("task") if isinstance(metadata, dict) else None
    return task if isinstance(task, str) and task else None


def _messages_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    messages = body.get("messages")
    if isinstance(messages, list):
        kept = messages[-MAX_MESSAGES:]
        if len(messages) > MAX_MESSAGES:
            kept = messages[:1] + kept
        return [message for message in kept if isinstance(message, dict)]
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        prompt = next((item for item in prompt if isinstance(item, str)), "")
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []


def read_prompt(body: Mapping[str, Any]) -> Prompt:
    """Return the parts of a chat or completions body. Never raises."""
    system, users, reply, result, images = "", [""], "", "", False
    for message in _messages_of(body):
        role, content = message.get("role"), message.get("content")
        if role in SYSTEM_ROLES if isinstance(role, str) else False:
            system = system or text_of(content)
        elif role == "assistant":
            reply = text_of(content) or reply
        elif role in TOOL_ROLES if isinstance(role, str) else False:
            result = text_of(content)
        else:
            users.append(text_of(content))
            images = images or (isinstance(content, list) and _has_image(content))
            result = ""
    tools = body.get("tools") or body.get("functions")
    prediction = body.get("prediction")
    return Prompt(
        user=users[-1],
        system=system,
        before=users[-2] if len(users) > 2 else "",
        reply=reply if len(users) > 2 else "",
        result=result,
        turns=len(users) - 1,
        tools=tuple(tools[:16]) if isinstance(tools, list) else (),
        tool_choice=_choice_of(body),
        response_format=_format_of(body),
        prediction=text_of(prediction.get("content")) if isinstance(prediction, dict) else "",
        images=images,
        declared=_declared_in(body),
    )
