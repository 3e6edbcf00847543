"""Checks a model folder in Hugging Face's layout before transformers reads it, so that an error can name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelError

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
INDEX = "model.safetensors.index.json"


def check_folder(folder: Path) -> None:
    """Raise ModelError naming the first file that is missing or damaged."""
    config = _json(folder / "config.json")
    if "model_type" not in config:
        raise ModelError(f"model file {folder / 'config.json'} has no model_type: not a Hugging Face model")
    for name in ("generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        if (folder / name).exists():
            _json(folder / name)
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ModelError(f"model folder {folder} has no tokenizer: expected one of {', '.join(TOKENIZERS)}")
    for path in _weights(folder):
        check_safetensors(path)


def _weights(folder: Path) -> list[Path]:
    """Return the safetensors files that must be there; a folder may hold PyTorch's own format instead."""
    if (folder / INDEX).is_file():
        parts: dict[str, str] = _json(folder / INDEX).get("weight_map", {})
        return [folder / name for name in sorted(set(parts.values()))]
    found = sorted(folder.glob("*.safetensors"))
    if not found and not any(folder.glob("pytorch_model*.bin")):
        raise ModelError(f"model file {folder / 'model.safetensors'} is missing")
    return found


def check_safetensors(path: Path) -> None:
    """Compare the file's length with what its header promises. Raises ModelError."""
    if not path.is_file():
        raise ModelError(f"model file {path} is missing")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ModelError(f"model file {path} is damaged (its header is cut off at {size} bytes)")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ModelError(f"model file {path} is damaged (its header cannot be read: {error})") from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise ModelError(f"model file {path} is damaged ({size} bytes instead of {expected})")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"model file {path} is missing") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"model file {path} is damaged ({error})") from error
    if not isinstance(found, dict):
        raise ModelError(f"model file {path} is damaged (expected a JSON object)")
    return found
