"""Load, process start, version and draft from the documents of each engine, over real HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from gateway.backends.base import Target
from gateway.backends.generic import MeasuredBackend
from gateway.backends.llamacpp import LlamaCppBackend
from gateway.backends.sglang import SglangBackend
from gateway.backends.vllm import VllmBackend
from gateway.epochs import epoch_of, kind_of
from gateway.errors import BackendUnreachable
from gateway.types import Arm

NAMES = {
    VllmBackend: ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    SglangBackend: ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    LlamaCppBackend: ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}


@dataclass
class Engine:
    """A server's documents, as a test sets them."""

    page: str | None = None
    documents: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    lost: str = ""
    """Path of which no answer comes."""

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == self.lost and request.transport is not None:
            request.transport.close()
        if request.path == "/metrics" and self.page is not None:
            return web.Response(text=self.page, headers=self.headers)
        found = {"/v1/models": {"data": [{"id": "m", "max_model_len": 64}]}, **self.documents}.get(request.path)
        return web.json_response(found) if found is not None else web.Response(status=404)


@asynccontextmanager
async def watched(
    adapter: type[MeasuredBackend], engine: Engine, arm: Arm | None = None
) -> AsyncIterator[tuple[MeasuredBackend, Callable[[], Any]]]:
    """Yield an adapter before that server, and a look that counts as a good one."""
    app = web.Application()
    app.router.add_get("/{path:.*}", engine.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    backend = adapter(Target("pool", url, arms=(arm or Arm("pool"),)))

    async def look() -> str:
        await backend.probe()
        backend.healthy, backend.detail = True, ""
        return backend.epoch

    try:
        yield backend, look
    finally:
        await backend.aclose()
        await runner.cleanup()


@pytest.mark.parametrize("adapter", NAMES, ids=lambda adapter: adapter.kind)
@pytest.mark.parametrize("has_page", [True, False])
async def test_load_is_read_where_the_server_tells_it(adapter: type[MeasuredBackend], has_page: bool) -> None:
    running, waiting = NAMES[adapter]
    page = f"{running} 5.0\n{waiting} 2.0\n{adapter.kv_metrics[-1]} 0.5\nprocess_start_time_seconds 1700000000.4\n"
    version = {"version": "0.9.1"}
    documents = {"/version": version, "/get_server_info": version, "/props": {"build_info": "0.9.1"}}
    async with watched(adapter, Engine(page if has_page else None, documents)) as (backend, look):
        await look()
        seen = (backend.model, backend.running_seen, backend.waiting, backend.epoch.rpartition(".")[2])
        assert seen == (("m", 5, 2, "1700000000") if has_page else ("m", 0, 0, "1"))
        assert backend.kv_used == (0.5 if has_page else None)
        assert backend.version == "0.9.1"
        assert backend.start_known is has_page
        if has_page:
            assert backend.epoch == epoch_of((backend.kind, "m", "0.9.1", ""), "1700000000")


async def test_a_vllm_that_preempts_counts_as_full() -> None:
    page = "vllm:kv_cache_usage_perc 0.7\nvllm:num_preemptions_total {}\n"
    engine = Engine(page.format(40))
    async with watched(VllmBackend, engine) as (backend, look):
        seen = []
        for total in (40, 40, 43, 43):
            engine.page = page.format(total)
            await look()
            seen.append(backend.kv_used)
        assert seen == [0.7, 0.7, 1.0, 0.7]


async def test_sglang_tells_its_start_by_its_seed_once_its_totals_fall() -> None:
    info = {"version": "0.5.23", "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "d"}
    engine = Engine("sglang:generation_tokens_total 70\n", {"/get_server_info": {**info, "random_seed": 11}})
    async with watched(SglangBackend, engine, Arm("pool", "eagle", 3)) as (backend, look):
        first = await look()
        assert (first.rpartition(".")[2], backend.draft, backend.state().detail) == ("11", "d", "")
        engine.page = "sglang:generation_tokens_total 90\n"
        assert await look() == first
        engine.page = "sglang:generation_tokens_total 3\n"
        engine.documents["/get_server_info"] = {"version": "0.5.23", "speculative_algorithm": None, "random_seed": 12}
        second = await look()
        assert (second.rpartition(".")[2], kind_of(second) == kind_of(first)) == ("12", False)
        assert backend.state().arms == (Arm("pool"),)
        assert "does not speculate" in backend.state().detail


SPECULATES = {"version": "0.5.23", "speculative_algorithm": "EAGLE3"}
PLAIN = {"version": "0.5.23", "speculative_algorithm": None}


@pytest.mark.parametrize("page", ["sglang:generation_tokens_total 70\n", None])
async def test_a_server_whose_first_page_did_not_come_is_met_at_the_next_look(page: str | None) -> None:
    engine = Engine(page, {"/get_server_info": {**SPECULATES, "random_seed": 11}}, lost="/metrics")
    async with watched(SglangBackend, engine, Arm("pool", "eagle", 3)) as (_, look):
        await look()
        engine.lost = ""
        assert (await look()).rpartition(".")[2] == "11"


@pytest.mark.parametrize("lost", ["/metrics", "/get_server_info"])
async def test_a_restart_during_which_a_document_did_not_come_is_not_forgotten(lost: str) -> None:
    engine = Engine("sglang:generation_tokens_total 70\n", {"/get_server_info": {**SPECULATES, "random_seed": 11}})
    async with watched(SglangBackend, engine, Arm("pool", "eagle", 3)) as (backend, look):
        await look()
        engine.page = "sglang:generation_tokens_total 3\n"
        engine.documents["/get_server_info"] = {**PLAIN, "random_seed": 12}
        engine.lost, backend.healthy = lost, lost != "/metrics"  # which comes late of a server that was down
        with contextlib.suppress(BackendUnreachable):
            await look()
        engine.page, engine.lost = "sglang:generation_tokens_total 90\n", ""
        assert (await look()).rpartition(".")[2] == "12"
        assert backend.state().arms == (Arm("pool"),)


@pytest.mark.parametrize("marker", ["", "<__media_a__>"])
async def test_llamacpp_tells_its_start_in_a_header_or_by_its_marker(marker: str) -> None:
    engine = Engine("llamacpp:tokens_predicted_total 9\n", {"/props": {"media_marker": marker}})
    engine.headers = {} if marker else {"Process-Start-Time-Unix": "455091882"}
    async with watched(LlamaCppBackend, engine) as (backend, look):
        first = await look()
        assert first.rpartition(".")[2] == (marker or "455091882")
        engine.page = "llamacpp:tokens_predicted_total 2\n"
        engine.documents["/props"] = {"media_marker": marker and "<__media_b__>"}
        engine.headers = {} if marker else {"Process-Start-Time-Unix": "7"}
        second = await look()
        assert second != first
        engine.page = None  # a page that is away for a moment is no restart
        assert await look() == second
        assert backend.start_known


async def test_totals_that_fall_tell_of_a_restart_where_nothing_else_does() -> None:
    engine = Engine("vllm:generation_tokens_total 70\n")
    async with watched(VllmBackend, engine) as (_, look):
        first = await look()
        assert await look() == first
        engine.page = "vllm:generation_tokens_total 1\n"
        second = await look()
        assert (second != first, kind_of(second) == kind_of(first)) == (True, True)


@pytest.mark.parametrize(
    ("page", "arm", "said"),
    [
        ("vllm:generation_tokens_total 0\n", Arm("pool", "ngram", 4), "does not speculate"),
        ("vllm:generation_tokens_total 0\nvllm:spec_decode_num_drafts_total 0\n", Arm("pool", "ngram", 4), ""),
        ("vllm:generation_tokens_total 0\nvllm:spec_decode_num_drafts_total 0\n", Arm("pool"), "named it as plain"),
        ("", Arm("pool", "ngram", 4), ""),
    ],
)
async def test_a_vllm_that_decodes_otherwise_than_named_is_told(page: str, arm: Arm, said: str) -> None:
    async with watched(VllmBackend, Engine(page), arm) as (backend, look):
        await look()
        state = backend.state()
        assert state.detail == "" if not said else said in state.detail.replace("names", "named")
        assert state.arms == ((Arm("pool"),) if said.startswith("does not") else (arm,))
