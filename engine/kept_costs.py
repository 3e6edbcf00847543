"""Step costs kept between starts, a file for each model, type of numbers, device and number of threads. For `costs`."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from pathlib import Path

import msgspec

from engine.messages import CostTable

MAX_AGE_S = 7 * 86_400.0
"""A kept table older than this is measured anew."""
_FORMAT = 2
"""Tables kept by earlier versions lack what is measured now, and are measured anew."""

log = logging.getLogger(__name__)


def cache_path(folder: Path, *facts: object) -> Path:
    """Return where the costs of this model, type of numbers, device and number of threads are kept."""
    text = json.dumps([*map(str, facts), os.cpu_count(), _FORMAT])
    return folder / "costs" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def save_table(path: Path, table: CostTable) -> None:
    """Keep the table for the next start; a folder that cannot be written is logged and let be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(msgspec.json.encode(table))
        Path(file.name).replace(path)
    except OSError as error:
        log.warning("step costs are not kept: %s", error)


def load_table(path: Path) -> CostTable | None:
    """Return a kept table; None where there is none that can be read, or it is too old."""
    try:
        if time.time() - path.stat().st_mtime > MAX_AGE_S:
            return None
        return msgspec.json.decode(path.read_bytes(), type=CostTable)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s: kept step costs cannot be read (%s); they are measured anew", path, error)
        return None
