"""The engine's Litestar application: routes, authorisation, lifespan. Built by `run.py` and by tests."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.types import ASGIApp

from engine.errors import RequestRejected
from engine.messages import CostTable, EngineInfo
from engine.server import errors
from engine.server.answers import Answer, StreamedAnswer, WholeAnswer
from engine.server.jobs import Job, chat_job, completion_job
from engine.server.params import Limits
from engine.server.render import Renderer
from engine.server.schemas import ChatRequest, CompletionRequest, decode
from engine.server.service import EngineService
from engine.server.wire import Health, ModelCard, ModelList
from engine.tokenizer import ChatTokenizer

MAX_BODY_BYTES = 64 << 20
LONG_BODY_BYTES = 32 << 10
"""Longer bodies are parsed and tokenised in a thread, so that they do not hold up everyone's streams."""
Body = TypeVar("Body", ChatRequest, CompletionRequest)
HttpRequest = Request[Any, Any, State]


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What the handlers need, for the life of the process."""

    service: EngineService
    tokenizer: ChatTokenizer
    limits: Limits
    model: str
    draft: str | None
    dtype: str
    device: str
    threads: int
    max_batch: int
    version: str
    token: str | None = None
    started: float = field(default_factory=time.time)

    @property
    def epoch(self) -> str:
        """A new one with every process start, version, model and draft; what stands before the dot outlives a start."""
        kind = self._hash(self.version, self.model, self.draft or "", self.dtype)
        return f"{kind}.{self._hash(str(self.started))}"

    def fingerprint(self, job: Job) -> str:
        """OpenAI's `system_fingerprint`: arm, draft and version."""
        arm = f"{job.speculation.method}-k{job.speculation.k}"
        return "fp_" + self._hash(arm, self.draft or "", self.version, self.model, self.dtype)

    @staticmethod
    def _hash(*parts: str) -> str:
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def create_app(context: ServerContext) -> Litestar:
    """Return the application; the step loop runs for as long as its lifespan."""

    def start() -> None:
        context.service.start()

    async def stop() -> None:
        await asyncio.to_thread(context.service.stop)

    return Litestar(
        route_handlers=[chat_completions, completions, models, model, costs, info, health],
        state=State({"context": context}),
        on_startup=[start],
        on_shutdown=[stop],
        before_request=_authorise,
        exception_handlers={Exception: errors.handle, HTTPException: errors.handle},
        request_max_body_size=MAX_BODY_BYTES,
        openapi_config=None,
        logging_config=None,
    )


def _context(request: HttpRequest) -> ServerContext:
    context: ServerContext = request.app.state["context"]
    return context


def _authorise(request: HttpRequest) -> None:
    token = _context(request).token
    if token is None or request.url.path == "/health":
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise errors.Unauthorized("expected Authorization: Bearer with this engine's BREAKEVEN_ENGINE_TOKEN")


@post("/v1/chat/completions", status_code=200)
async def chat_completions(request: HttpRequest) -> ASGIApp:
    """Continue a conversation."""
    return await _generate(request, ChatRequest, chat_job)


@post("/v1/completions", status_code=200)
async def completions(request: HttpRequest) -> ASGIApp:
    """Continue a text."""
    return await _generate(request, CompletionRequest, completion_job)


async def _generate(
    request: HttpRequest, schema: type[Body], job_of: Callable[[Body, ChatTokenizer, Limits], Job]
) -> ASGIApp:
    """Check a body, long ones beside the event loop, and answer it."""
    raw = await request.body()
    context = _context(request)

    def prepare() -> tuple[str, Job]:
        body = decode(raw, schema)
        _check_model(body.model, context)
        return body.model, job_of(body, context.tokenizer, context.limits)

    name, job = await asyncio.to_thread(prepare) if len(raw) > LONG_BODY_BYTES else prepare()
    return await _answer(context, request, job, name)


async def _answer(context: ServerContext, request: HttpRequest, job: Job, model: str) -> Answer:
    renderer = Renderer(job, context.tokenizer, model=model, fingerprint=context.fingerprint(job))
    generation = await context.service.submit(job.requests)
    given = request.headers.get("x-request-id", "")
    headers = {"x-request-id": given if given.isascii() and given.isprintable() and given else job.id}
    if job.stream:
        return StreamedAnswer(generation, renderer, headers, include_usage=job.include_usage)
    return WholeAnswer(generation, renderer, headers)


def _check_model(name: str, context: ServerContext) -> None:
    if name != context.model:
        raise RequestRejected(
            f"The model {name!r} does not exist: this engine serves {context.model!r}",
            param="model",
            code="model_not_found",
            status=404,
        )


def _card(context: ServerContext) -> ModelCard:
    return ModelCard(context.model, int(context.started), context.limits.max_model_len, root=context.model)


@get("/v1/models")
async def models(request: HttpRequest) -> ModelList:
    """List the served model."""
    return ModelList([_card(_context(request))])


@get("/v1/models/{name:path}")
async def model(request: HttpRequest, name: FromPath[str]) -> ModelCard:
    """Describe the served model."""
    context = _context(request)
    _check_model(name.removeprefix("/"), context)
    return _card(context)


@get("/v1/engine/costs")
async def costs(request: HttpRequest) -> CostTable:
    """Return the measured costs of steps."""
    return _context(request).service.core.costs()


@get("/v1/engine/info")
async def info(request: HttpRequest) -> EngineInfo:
    """Say what this process is, can do and is doing."""
    context = _context(request)
    stats = context.service.core.stats()
    return EngineInfo(
        model=context.model,
        max_model_len=context.limits.max_model_len,
        methods=list(context.limits.methods),
        max_k=context.limits.max_k,
        epoch=context.epoch,
        version=context.version,
        dtype=context.dtype,
        device=context.device,
        threads=context.threads,
        draft=context.draft,
        has_tool_template=context.tokenizer.has_tool_template,
        max_batch=context.max_batch,
        running=stats.running,
        waiting=stats.waiting,
        kv_tokens_used=stats.kv_tokens_used,
        kv_tokens_total=stats.kv_tokens_total,
        profiled=stats.profiled,
    )


@get("/health")
async def health(request: HttpRequest) -> Response[Health]:
    """Answer 200 while the step loop lives, 503 for ever after."""
    dead = _context(request).service.dead
    if dead is not None:
        return Response(Health("dead", str(dead)), status_code=503)
    return Response(Health("ok"), status_code=200)
