"""`breakeven engine`: the command lives with the engine, which runs without the rest of the package's commands."""

from __future__ import annotations

from engine.__main__ import main as engine

__all__ = ["engine"]
