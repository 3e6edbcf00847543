"""Where models lie on disk, and writing there so that a crash never leaves half a file under its final name."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from engine.errors import ModelError


def models_dir(configured: str | Path | None = None) -> Path:
    """Return the folder of fetched models: `configured`, else `BREAKEVEN_MODELS_DIR`, else the user's cache folder."""
    if chosen := configured or os.environ.get("BREAKEVEN_MODELS_DIR"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "breakeven" / "models"


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that two processes starting together fetch and convert once. Raises ModelError."""
    with _lock_file(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lock_file(folder: Path) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / ".lock").open("w")
    except OSError as error:
        raise ModelError(f"cannot write to the models folder {folder}: {error.strerror}") from error


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `target` that takes its place when the block ends without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
