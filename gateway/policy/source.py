"""The policy file of a gateway, and whether it has changed. Reads it and the tasks file that it names, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.policy.loader import parse_policy, read_text
from gateway.policy.schema import Policy

Signature = tuple[tuple[int, int, int] | None, ...]


class PolicyFile:
    """Watches by looking: works on every file system, and with links that are swapped as Kubernetes does."""

    def __init__(self, path: Path, *, env: Mapping[str, str] | None = None, shipped: bool = False) -> None:
        self.path = path
        self.name = str(path)
        self.shipped = shipped
        """Whether it is the default policy of the package."""
        self._env = env
        self._parts = [path]
        self._seen = self._pending = self._signature()

    def load(self) -> Policy:
        """Read and check the file. Raises PolicyError."""
        parts = [self.path]

        def resolve(name: str) -> str:
            parts.append(self.path.parent / name)
            return read_text(parts[-1])

        self._seen = self._pending = self._signature()
        try:
            return parse_policy(read_text(self.path), self.name, env=self._env, resolve=resolve)
        finally:
            if parts != self._parts:
                self._parts = parts
                self._seen = self._pending = self._signature()

    def changed(self) -> Policy | None:
        """Return the policy if the file has changed since it was last read and is at rest: half a file is never read.

        Raises PolicyError where it cannot be used.
        """
        now = self._signature()
        if now == self._seen:
            self._pending = now
            return None
        if now != self._pending:
            self._pending = now
            return None
        return self.load()

    def _signature(self) -> Signature:
        return tuple(_stat(path) for path in self._parts)


def _stat(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with a file's content, None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
