"""Prompts of chats, and the bytes of tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import RequestRejected
from engine.models import LoadedModel
from engine.tokenizer import ChatTokenizer
from tests.fixtures.models import byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_target: LoadedModel) -> ChatTokenizer:
    return ChatTokenizer(tiny_target)


def with_template(loaded: LoadedModel, folder: Path, template: str | None) -> ChatTokenizer:
    fast = byte_tokenizer(folder)
    fast.chat_template = template
    return ChatTokenizer(replace(loaded, tokenizer=fast))


def test_a_chat_ends_where_the_assistant_begins(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.render([{"role": "user", "content": "hé"}])
    text = tokenizer.decode(ids)
    assert text == "user\nhé\nassistant\n"
    assert ids[0] == 1
    assert ids.count(2) == 1


def test_plain_text_survives(tokenizer: ChatTokenizer) -> None:
    for text in ("", "hello", "žluťoučký kůň 🦊", "a\tb\n  c"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_token_bytes_are_the_bytes_of_the_text(tokenizer: ChatTokenizer) -> None:
    text = "naïve 🦊 ¡\x00\n"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.token_bytes(100_000) == b""


def test_tool_support_is_read_off_the_template(tiny_target: LoadedModel, tmp_path: Path) -> None:
    asked = "{% if tools %}{{ tools }}{% endif %}{{ messages[0].content }}"
    assert with_template(tiny_target, tmp_path, asked).has_tool_template
    assert not with_template(tiny_target, tmp_path, "{{ messages[0].content }}").has_tool_template
    own = "{% set tools = 1 %}{{ messages[0].content }}{{ tools }}"
    assert not with_template(tiny_target, tmp_path, own).has_tool_template
    tagged = "{% generation %}{{ tools }}{% endgeneration %}"
    assert with_template(tiny_target, tmp_path, tagged).has_tool_template


def test_no_template_is_a_refusal(tiny_target: LoadedModel, tmp_path: Path) -> None:
    bare = with_template(tiny_target, tmp_path, None)
    with pytest.raises(RequestRejected, match="no chat template") as caught:
        bare.render([{"role": "user", "content": "x"}])
    assert caught.value.param == "messages"


def test_what_the_template_refuses_is_the_clients_fault(tiny_target: LoadedModel, tmp_path: Path) -> None:
    strict = with_template(tiny_target, tmp_path, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestRejected, match="roles must alternate") as caught:
        strict.render([{"role": "user", "content": "x"}])
    assert (caught.value.param, caught.value.status) == ("messages", 400)
