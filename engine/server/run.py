"""Brings one engine process up and down: port, models, core, server. Called by `engine/__main__.py`."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import logging
import signal
import socket
import sys

import torch
import uvicorn

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import EngineError
from engine.models import LoadedModel
from engine.models.load import kv_budget, load_models
from engine.models.resident import release_file_pages
from engine.models.transfer import Progress
from engine.server.app import ServerContext, create_app
from engine.server.listen import Listen
from engine.server.params import Limits
from engine.server.service import EngineService
from engine.tokenizer import ChatTokenizer

log = logging.getLogger(__name__)
DRAIN_S = 3.0
"""After SIGTERM running requests have this long to finish; then their streams end with an error."""
KEEP_ALIVE_S = 75
"""Longer than any client's idle timeout, so that the client is the one to close."""


def serve(config: EngineConfig, listen: Listen, bound: socket.socket, kv_tokens: int | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises EngineError where the engine cannot start."""
    torch.set_num_threads(config.num_threads)
    target, draft = load_models(config, _log_progress())
    config = dataclasses.replace(config, kv_tokens=kv_tokens or kv_budget(target, config.max_batch))
    core = EngineCore(target, config, draft)
    release_file_pages()
    if core.stats().profiled:  # by an earlier process on this machine
        core.export_costs()
    context = make_context(core, config, target, draft, listen.token)
    server = _Server(context, listen, bound)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again once it has drained: not an error
        signal.signal(number, lambda *_: None)
    asyncio.run(server.serve(sockets=[bound]))
    core.export_costs()
    if not server.started:
        raise EngineError(f"cannot listen on {listen.host}:{listen.port}: the address is already in use")


def make_context(
    core: EngineCore, config: EngineConfig, target: LoadedModel, draft: LoadedModel | None, token: str | None = None
) -> ServerContext:
    """Wire a core to what the HTTP handlers need."""
    window = min(target.max_len, config.max_model_len or target.max_len, core.stats().kv_tokens_total - config.max_k)
    return ServerContext(
        service=EngineService(core),
        tokenizer=ChatTokenizer(target),
        limits=Limits(window, target.vocab_size, tuple(core.methods), config.max_k),
        model=target.name,
        draft=" + ".join(filter(None, (draft.name if draft is not None else None, core.head))) or None,
        dtype=str(target.dtype).removeprefix("torch."),
        device=str(target.device),
        threads=config.num_threads,
        max_batch=config.max_batch,
        version=importlib.metadata.version("breakeven"),
        token=token,
    )


class _Server(uvicorn.Server):
    """uvicorn with a ready line and a deadline for what still runs at shutdown."""

    def __init__(self, context: ServerContext, listen: Listen, bound: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(context),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(DRAIN_S) + 2,
            )
        )
        self._context = context
        self._url = f"http://{listen.url_host}:{bound.getsockname()[1]}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            context = self._context
            draft = f", draft {context.draft}" if context.draft else ""
            threads = "1 thread" if context.threads == 1 else f"{context.threads} threads"
            print(
                f"breakeven engine: {context.model}{draft} ({context.dtype}, {context.device}, {threads}, "
                f"window {context.limits.max_model_len}) ready on {self._url}",
                flush=True,
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        error = EngineError("the engine is shutting down")
        asyncio.get_running_loop().call_later(DRAIN_S, self._context.service.fail_all, error)
        await super().shutdown(sockets)


def _log_progress() -> Progress:
    """Report a download on standard error, one line for each tenth."""
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if (tenth := done * 10 // total) > shown:
            shown = tenth
            print(f"breakeven engine: fetching the model, {done / 1e6:.0f} of {total / 1e6:.0f} MB", file=sys.stderr)

    return progress
