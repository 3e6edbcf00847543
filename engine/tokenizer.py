"""Text to token ids and back for one model: chat template, encoding, the bytes of a token. Used by the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, TemplateError, meta

from engine.errors import RequestRejected
from engine.models import LoadedModel


def _bytes_of_unicode() -> dict[str, int]:
    """Invert GPT-2's printable alphabet of bytes (Radford et al. 2019) in which byte-level vocabularies are written."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _bytes_of_unicode()


class ChatTokenizer:
    """A model's tokenizer with what OpenAI's interface needs of it. Stateless, safe to call from any thread."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._tokenizer = loaded.tokenizer
        self._vocab_size = loaded.vocab_size
        template = self._template()
        self.has_chat_template = template is not None
        self.has_tool_template = template is not None and "tools" in _variables(template)
        self.writes_tool_calls = self.has_tool_template and "<tool_call>" in str(template)
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        self._byte_level = backend is not None and "ByteLevel" in str(backend.decoder)
        self._special = frozenset(self._tokenizer.all_special_ids)

    def _template(self) -> str | None:
        template = self._tokenizer.chat_template
        if isinstance(template, Mapping):  # several named templates in one file
            named: Mapping[str, str] = template
            return named.get("tool_use") or named.get("default")
        return str(template) if template else None

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Return the prompt of a chat that the assistant is to continue. Raises RequestRejected naming `messages`."""
        if not self.has_chat_template:
            raise RequestRejected("this model has no chat template: use /v1/completions", param="messages")
        try:
            ids: Any = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        except TemplateError as error:
            raise RequestRejected(
                f"messages: the model's chat template refuses them: {error}", param="messages"
            ) from error
        return [int(token) for token in ids]

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of plain text, with the tokenizer's own special tokens around it where `special` is set."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=special)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @property
    def bos_id(self) -> int | None:
        """What an empty prompt begins with."""
        found = self._tokenizer.bos_token_id
        return int(found) if isinstance(found, int) else None

    @property
    def vocab_size(self) -> int:
        """Ids below this may be biased and prompted with."""
        return self._vocab_size

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for; one token may be half a character."""
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(piece, str):
            return b""
        if token not in self._special and self._byte_level and all(char in _BYTES for char in piece):
            return bytes(_BYTES[char] for char in piece)
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):  # sentencepiece's byte fallback
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()


def _variables(template: str) -> set[str]:
    """Return the variables that a template reads."""
    try:
        return meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template))  # noqa: S701 - nothing is rendered
    except TemplateError:
        return {"tools"} if "tools" in template else set()  # e.g. transformers' own {% generation %} tag
