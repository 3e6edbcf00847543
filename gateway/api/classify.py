"""`POST /v1/classify`: which task a request would be taken for, by the code that classifies requests. For operators."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, post
from litestar.datastructures import State

from gateway.access import Access
from gateway.api.given import Given
from gateway.api.schemas import decode_object
from gateway.errors import InvalidRequest
from gateway.serve import Service
from gateway.types import Classification


class ClassifyController(Controller):
    """The endpoint."""

    path = "/v1/classify"

    @post("/", status_code=200)
    async def classify(
        self, request: Request[Any, Any, State], access: Given[Access], service: Given[Service]
    ) -> Classification:
        """Classify a chat or completions body; `x-breakeven-task` declares a task as it would for a request."""
        access.operator(request.headers)
        body = decode_object(await request.body())
        if "turns" in body and "messages" not in body:
            turns = body["turns"]
            if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
                raise InvalidRequest("turns: expected an array of strings", param="turns", code="invalid_type")
            body["messages"] = [{"role": "user", "content": turn} for turn in turns]
        if not ("messages" in body or "prompt" in body):
            message = "expected messages, turns or prompt"
            raise InvalidRequest(message, param="messages", code="missing_required_parameter")
        return service.classify(body, request.headers.get("x-breakeven-task"))
