"""Models on disk and in memory: fetch, convert, check, load. Importing this package never loads torch."""

from __future__ import annotations

from engine.models.loaded import LoadedModel

__all__ = ["LoadedModel"]
