"""`GET /v1/models`: what the backends serve, with each model's window."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec
from litestar import Controller, Request, get
from litestar.datastructures import State
from litestar.params import FromPath

from gateway.access import Access
from gateway.api.given import Given
from gateway.errors import NotFound
from gateway.types import BackendState

Req = Request[Any, Any, State]
States = Callable[[], list[BackendState]]


class Model(msgspec.Struct):
    """One model, as OpenAI lists it, with vLLM's `max_model_len`."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "breakeven"
    max_model_len: int | None = None
    """The longest window among the backends that have it."""
    arms: list[str] = []
    """Ways to decode it, as they appear in `x-breakeven-arm`."""


class ModelList(msgspec.Struct):
    """The list."""

    data: list[Model]
    object: Literal["list"] = "list"


def models_of(states: Iterable[BackendState], started: int) -> list[Model]:
    """Return each model once, in the order of the policy's backends."""
    found: dict[str, Model] = {}
    for state in states:
        if not state.model:
            continue
        model = found.setdefault(state.model, Model(state.model, created=started))
        model.arms += [str(arm) for arm in state.arms]
        if state.max_model_len is not None:
            model.max_model_len = max(state.max_model_len, model.max_model_len or 0)
    return list(found.values())


class ModelsController(Controller):
    """The two endpoints."""

    path = "/v1/models"

    @get("/", sync_to_thread=False)
    def list_models(self, request: Req, access: Given[Access], states: Given[States], started: Given[int]) -> ModelList:
        """List all models."""
        access.identify(request.headers)
        return ModelList(models_of(states(), started))

    @get("/{model_id:path}", sync_to_thread=False)
    def get_model(
        self, request: Req, access: Given[Access], states: Given[States], started: Given[int], model_id: FromPath[str]
    ) -> Model:
        """Show one model."""
        access.identify(request.headers)
        wanted = model_id.lstrip("/")
        for model in models_of(states(), started):
            if model.id == wanted:
                return model
        raise NotFound(f"model {wanted!r} does not exist", param="model", code="model_not_found")
