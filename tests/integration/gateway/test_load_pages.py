"""Load and process start from the Prometheus page of each engine, over real HTTP."""

import pytest
from aiohttp import web

from gateway.backends.base import Target
from gateway.backends.generic import MeasuredBackend
from gateway.backends.llamacpp import LlamaCppBackend
from gateway.backends.sglang import SglangBackend
from gateway.backends.vllm import VllmBackend
from gateway.epochs import epoch_of

NAMES = {
    VllmBackend: ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    SglangBackend: ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    LlamaCppBackend: ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}


@pytest.mark.parametrize("adapter", NAMES, ids=lambda adapter: adapter.kind)
@pytest.mark.parametrize("has_page", [True, False])
async def test_load_is_read_where_the_server_tells_it(adapter: type[MeasuredBackend], has_page: bool) -> None:
    running, waiting = NAMES[adapter]
    page = f"{running} 5.0\n{waiting} 2.0\n{adapter.kv_metrics[-1]} 0.5\nprocess_start_time_seconds 1700000000.4\n"

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 64}]})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=page) if has_page else web.Response(status=404)

    app = web.Application()

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": "0.9.1"})

    app.add_routes([web.get("/v1/models", models), web.get("/metrics", metrics)])
    if adapter.version_path:
        app.add_routes([web.get(adapter.version_path, version)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    backend = adapter(Target("pool", f"http://127.0.0.1:{runner.addresses[0][1]}"))
    try:
        await backend.probe()
        seen = (backend.model, backend.running_seen, backend.waiting, backend.epoch.rpartition(".")[2])
        assert seen == (("m", 5, 2, "1700000000") if has_page else ("m", 0, 0, "1"))
        assert backend.kv_used == (0.5 if has_page else None)
        assert backend.version == ("0.9.1" if has_page and adapter.version_path else "")
        if has_page:
            assert backend.epoch == epoch_of((backend.kind, "m", backend.version), "1700000000")
    finally:
        await backend.aclose()
        await runner.cleanup()
