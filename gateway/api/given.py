"""The marker for what `create_app` provides to handlers: our own parts, which the framework need not validate."""

from __future__ import annotations

from typing import Annotated, TypeVar

from litestar.di import Dependency
from litestar.params import SkipValidationMarker

T = TypeVar("T")
Given = Annotated[T, Dependency(kind="named"), SkipValidationMarker()]
