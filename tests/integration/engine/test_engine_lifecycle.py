"""The engine process as its operator and its clients' misfortunes see it: start, leave, die, drain."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection as Connection
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.models import LoadedModel
from engine.sequence import StepOutput
from engine.server.run import make_context
from tests.fixtures.models import EngineProcess, engine_running, run_engine, serving, stop, tiny_llama

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny-target", "messages": [{"role": "user", "content": "go on"}], "ignore_eos": True}


@contextmanager
def sent(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> Iterator[Connection]:
    """Send a request and leave when the block ends, whether or not it was answered."""
    connection = Connection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers or {})
        yield connection
    finally:
        connection.close()


def get(url: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    with sent(url, "GET", path, headers=headers) as connection, connection.getresponse() as answer:
        return answer.status, json.load(answer)


def post(url: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any], dict[str, str]]:
    with sent(url, "POST", CHAT, body, headers) as connection, connection.getresponse() as answer:
        return answer.status, json.load(answer), dict(answer.headers)


@contextmanager
def stream(url: str, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    """Yield the events of a stream and leave it when the block ends."""
    with sent(url, "POST", CHAT, body | {"stream": True}) as connection, connection.getresponse() as answer:
        yield (line.removeprefix(b"data: ").decode().strip() for line in answer if line.startswith(b"data: "))


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def load(url: str) -> tuple[int, int]:
    """Return how many sequences run and wait."""
    _, info = get(url, "/v1/engine/info")
    return info["running"], info["waiting"]


def wait_idle(url: str) -> None:
    wait_for(lambda: load(url) == (0, 0), "the engine to drop what nobody reads")


@pytest.fixture(scope="module")
def slow_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine whose longest answer takes many seconds: three layers more and a long window; at most two waiting."""
    folder = tiny_llama(
        tmp_path_factory.mktemp("slow") / "tiny-target",
        seed=5,
        layers=8,
        hidden_size=128,
        max_position_embeddings=20_000,
    )
    options = ("--dtype", "float32", "--max-batch", "2", "--max-waiting", "2", "--no-profile")
    with engine_running("--model", str(folder), *options) as engine:
        yield engine


def test_leaving_a_stream_ends_its_sequences(slow_engine: EngineProcess) -> None:
    with stream(slow_engine.url, BODY | {"n": 2}) as events:
        next(events)
        wait_for(lambda: load(slow_engine.url) == (2, 0), "both answers to run")
    wait_idle(slow_engine.url)


def test_leaving_an_unstreamed_request_ends_it(slow_engine: EngineProcess) -> None:
    with sent(slow_engine.url, "POST", CHAT, BODY):
        wait_for(lambda: load(slow_engine.url) == (1, 0), "the request to run")
    wait_idle(slow_engine.url)


def test_a_full_queue_is_503_with_retry_after(slow_engine: EngineProcess) -> None:
    url = slow_engine.url
    with ExitStack() as clients:
        for _ in range(2):
            next(clients.enter_context(stream(url, BODY)))
        with ExitStack() as queued:
            for _ in range(2):
                queued.enter_context(sent(url, "POST", CHAT, BODY))
            wait_for(lambda: load(url) == (2, 2), "two to wait")
            status, body, headers = post(url, BODY)
            assert (status, body["error"]["code"], body["error"]["type"]) == (503, "queue_full", "service_unavailable")
            assert int(headers["retry-after"]) >= 1
        wait_for(lambda: load(url) == (2, 0), "the queue to forget clients that left")
    wait_idle(url)


def test_answers_that_do_not_all_fit_are_refused_together(slow_engine: EngineProcess) -> None:
    with stream(slow_engine.url, BODY | {"n": 2}) as events:
        next(events)
        wait_for(lambda: load(slow_engine.url) == (2, 0), "both answers to run")
        status, body, _ = post(slow_engine.url, BODY | {"n": 5})
        assert (status, body["error"]["code"]) == (503, "queue_full")
        wait_for(lambda: load(slow_engine.url) == (2, 0), "those that fitted to be dropped")
    wait_idle(slow_engine.url)


def test_short_requests_are_served_beside_long_ones(slow_engine: EngineProcess) -> None:
    with stream(slow_engine.url, BODY) as events:
        next(events)
        _, body, _ = post(slow_engine.url, BODY | {"max_tokens": 3})
        assert body["usage"]["completion_tokens"] == 3
        assert load(slow_engine.url) == (1, 0)
    wait_idle(slow_engine.url)


def test_sigterm_ends_long_streams_with_an_error(slow_engine: EngineProcess) -> None:
    """Comes last of those that share the engine."""
    with stream(slow_engine.url, BODY) as events:
        next(events)
        slow_engine.process.send_signal(signal.SIGTERM)
        *_, error, done = events
    assert done == "[DONE]"
    assert "shutting down" in json.loads(error)["error"]["message"]
    assert slow_engine.process.wait(60) == 0


class BrokenCore(EngineCore):
    """Fails in its third step, as a full GPU or a bug would."""

    steps = 0

    def step(self) -> list[StepOutput]:
        self.steps += 1
        if self.steps > 2:
            raise RuntimeError("a planted fault")
        return super().step()


def test_a_dead_step_loop_turns_health_red(tiny_target: LoadedModel) -> None:
    config = EngineConfig(dtype="float32", device="cpu", profile=False)
    with serving(make_context(BrokenCore(tiny_target, config), config, tiny_target, None)) as url:
        assert get(url, "/health") == (200, {"status": "ok"})
        with stream(url, BODY) as events:
            *_, error, done = events
        assert done == "[DONE]"
        assert json.loads(error)["error"]["code"] == "engine_dead"
        assert "a planted fault" in json.loads(error)["error"]["message"]
        status, body, _ = post(url, BODY)
        assert (status, body["error"]["code"]) == (503, "engine_dead")
        status, health = get(url, "/health")
        assert (status, health["status"]) == (503, "dead")


def test_what_fails_before_the_first_token_has_a_status_of_its_own(tiny_target: LoadedModel) -> None:
    config = EngineConfig(dtype="float32", device="cpu", profile=False)
    core = BrokenCore(tiny_target, config)
    core.steps = 2
    with serving(make_context(core, config, tiny_target, None)) as url:
        status, body, _ = post(url, BODY | {"stream": True})
    assert (status, body["error"]["code"]) == (503, "engine_dead")


def fails(*options: str, env: dict[str, str] | None = None) -> str:
    """Run an engine that cannot start and return what it said; no traceback, status 1."""
    process, log = run_engine(*options, env=env)
    try:
        assert process.wait(120) == 1
        said = log.read_text()
    finally:
        stop(process)
        log.unlink()
    assert "Traceback" not in said
    assert said.startswith("breakeven engine: ")
    return said


def test_port_in_use(tiny_model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in fails(
            "--model", str(tiny_model_dir), "--port", str(port)
        )


def test_off_loopback_wants_a_token(tiny_model_dir: Path) -> None:
    assert "BREAKEVEN_ENGINE_TOKEN" in fails("--model", str(tiny_model_dir), "--host", "0.0.0.0")


def test_missing_and_damaged_model_files(tiny_model_dir: Path, tmp_path: Path) -> None:
    assert "no model './gone'" in fails("--model", "./gone")
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model_dir.iterdir():
        (broken / file.name).write_bytes(file.read_bytes()[: 500 if file.name == "model.safetensors" else None])
    assert f"model file {broken / 'model.safetensors'} is damaged" in fails("--model", str(broken))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--dtype", "float8", "dtype: expected one of auto, float32, bfloat16"),
        ("--threads", "-1", "threads: expected 0"),
        ("--max-k", "65", "max_k: expected at most 64"),
        ("--kv-tokens", "0", "kv_tokens: expected at least 1"),
    ],
)
def test_malformed_options(option: str, value: str, said: str) -> None:
    assert said in fails("--model", "unused", option, value)


def test_the_token_is_required_once_set(tiny_target: LoadedModel) -> None:
    config = EngineConfig(dtype="float32", device="cpu", profile=False)
    with serving(make_context(EngineCore(tiny_target, config), config, tiny_target, None, "secret")) as url:
        assert get(url, "/health")[0] == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            status, body = get(url, "/v1/models", headers)
            assert (status, body["error"]["type"]) == (401, "authentication_error")
            assert post(url, BODY, headers)[0] == 401
        assert get(url, "/v1/models", {"Authorization": "Bearer secret"})[0] == 200


def test_many_clients_at_once_get_what_each_would_alone(engine_url: str) -> None:
    alone = [post(engine_url, _body(i))[1]["choices"][0]["message"]["content"] for i in range(12)]
    together: list[str] = [""] * 12

    def ask(i: int) -> None:
        together[i] = post(engine_url, _body(i))[1]["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def _body(i: int) -> dict[str, Any]:
    method, k = [("plain", 0), ("ngram", 4), ("draft_model", 2), ("suffix", 3)][i % 4]
    turn = [{"role": "user", "content": f"request {i} " * (1 + i)}]
    return BODY | {
        "messages": turn,
        "max_tokens": 20 + i,
        "temperature": 0,
        "speculation": {"method": method, "k": k},
    }
