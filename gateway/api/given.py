"""The marker for what `create_app` provides to handlers: our own parts, which the framework need not validate."""

from __future__ import annotations

from typing import Annotated, TypeVar

from litestar.params import Dependency

T = TypeVar("T")
Given = Annotated[T, Dependency(skip_validation=True)]
