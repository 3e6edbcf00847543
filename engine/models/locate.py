"""From a model's name to what transformers should read. Free of torch, so that a wrong name fails at once."""

from __future__ import annotations

import re
from pathlib import Path

from engine.errors import ModelError
from engine.models import store
from engine.models.files import check_folder
from engine.models.transfer import Progress

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def check_name(name: str) -> None:
    """Raise ModelError where `name` can be no model, or is a folder with missing or damaged files."""
    if name in store.BUILT_IN:
        return
    path = Path(name).expanduser()
    if path.is_dir():
        check_folder(path)
    elif path.exists() or name.startswith((".", "/", "~")) or not HUB_ID.fullmatch(name):
        known = ", ".join(store.BUILT_IN)
        raise ModelError(
            f"no model {name!r}: expected {known}, a folder in Hugging Face's layout, or a hub id (owner/name)"
        )


def locate(name: str, dtype: str, models_dir: str | None, progress: Progress) -> tuple[str, str]:
    """Return a folder or hub id, and the name under which the model is served. Raises ModelError.

    The built-in model is fetched where it never was, and its files are checked.
    """
    check_name(name)
    if name in store.BUILT_IN:
        folder = store.prepare(name, models_dir, progress) / dtype
        store.check(folder)
        return str(folder), name
    path = Path(name).expanduser()
    return (str(path), path.resolve().name) if path.is_dir() else (name, name)
