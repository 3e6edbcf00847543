"""Keeps transformers from talking to the engine's operator. Called before any model is read."""

from __future__ import annotations

import transformers


def quiet() -> None:
    """Silence transformers' notices and progress bars: the engine's output is for its operator."""
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call] # untyped upstream
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call] # untyped upstream
