"""The built-in model in the models folder: made ready by `breakeven models fetch` or a start, checked by all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelDownloadError, ModelError
from engine.models.fetch import SMOLLM2, fetch
from engine.models.paths import exclusive, models_dir
from engine.models.transfer import Progress, WheelFile, sha256_of

MANIFEST = "breakeven.json"
"""Lists the files of a converted folder with size and SHA-256, and the GGUF that they were made from."""
CONVERTED_DTYPES = ("float32", "bfloat16")
CONVERTED_BYTES = 900_000_000
"""Disk space that both converted folders need together."""
BUILT_IN: dict[str, WheelFile] = {"SmolLM2-135M-Instruct": SMOLLM2}
REMEDY = "run `breakeven models fetch` to repair it"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One built-in model in the models folder, for `breakeven models list`."""

    name: str
    folder: Path
    state: str
    """`ready`, `not fetched`, or what is wrong with it."""
    size: int
    """Bytes on disk."""


def no_progress(_done: int, _total: int) -> None:
    """Report nothing."""


def prepare(
    name: str, folder: str | Path | None = None, progress: Progress = no_progress, *, repair: bool = False
) -> Path:
    """Return the built-in model's folder, fetching and converting what was never there.

    Files that were there and are now missing or damaged raise ModelError naming the file, unless `repair` is set.
    """
    home = models_dir(folder) / name
    if not repair and _is_there(home):
        return home
    with exclusive(home):
        if _is_there(home) and (not repair or all(problem(home / dtype) is None for dtype in CONVERTED_DTYPES)):
            return home  # another process has just made it, or there is nothing to repair
        _convert(fetch(BUILT_IN[name], home, progress), home)
    return home


def _is_there(home: Path) -> bool:
    return all((home / dtype).exists() for dtype in CONVERTED_DTYPES)


def check(folder: Path) -> None:
    """Raise ModelError naming the first file of a converted folder that is missing or damaged."""
    if trouble := problem(folder):
        raise ModelError(f"{trouble}: {REMEDY}")


def problem(folder: Path) -> str | None:
    """Say what is wrong with a converted folder; None where nothing is."""
    manifest = folder / MANIFEST
    try:
        files: dict[str, dict[str, str | int]] = json.loads(manifest.read_text("utf-8"))["files"]
        expected = [(folder / name, int(entry["size"]), entry["sha256"]) for name, entry in files.items()]
    except FileNotFoundError:
        return f"model file {manifest} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"model file {manifest} is damaged ({error})"
    for path, size, digest in expected:
        if not path.is_file():
            return f"model file {path} is missing"
        if path.stat().st_size != size:
            return f"model file {path} is damaged ({path.stat().st_size} bytes instead of {size})"
        if sha256_of(path) != digest:
            return f"model file {path} is damaged (its hash does not match)"
    return None


def stored(folder: str | Path | None = None) -> list[StoredModel]:
    """Describe every built-in model."""
    return [_describe(name, models_dir(folder) / name) for name in BUILT_IN]


def _describe(name: str, home: Path) -> StoredModel:
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    if not _is_there(home):
        return StoredModel(name, home, "not fetched", size)
    troubles = [trouble for dtype in CONVERTED_DTYPES if (trouble := problem(home / dtype))]
    return StoredModel(name, home, troubles[0] if troubles else "ready", size)


def _convert(gguf: Path, home: Path) -> None:
    free = shutil.disk_usage(home).free
    if free < CONVERTED_BYTES:
        raise ModelDownloadError(
            f"{home} has {free / 1e6:.0f} MB free, and unpacking the model needs {CONVERTED_BYTES / 1e6:.0f} MB: "
            "free some space, or set BREAKEVEN_MODELS_DIR to a folder on a larger disk"
        )
    command = [sys.executable, "-m", "engine.models.convert", str(gguf), str(home)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 - own code
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise ModelError(f"cannot convert {gguf}: {last[0]}")
