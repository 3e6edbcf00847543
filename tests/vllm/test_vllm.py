"""Real vLLM servers on the CPU behind the gateway: `make test-vllm`. One thread each; a start takes about a minute."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.models.paths import models_dir
from gateway.backends.prometheus import read_metrics
from tests.fixtures.pools import ask, counts_agree, two_pools
from tests.fixtures.ports import free_port
from tests.fixtures.servers import GatewayServer, get, request, wait_until

pytestmark = pytest.mark.vllm
PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
MODEL = "SmolLM2-135M-Instruct"
WEIGHTS = models_dir() / MODEL / "bfloat16"
SPECULATION: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2},
    "draft_model": {"method": "draft_model", "model": str(WEIGHTS), "num_speculative_tokens": 4},
}
PROMPTS = (
    "Repeat this text exactly, twice: The quick brown fox jumps over the lazy dog. The lazy dog sleeps.",
    "Name three colours.",
)
START_S = 900
ANSWER_S = 300.0
"""A first answer compiles, and the machine may be busy."""
RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "recorded" / "vllm-0.32.0.json").read_text("utf-8"))
Start = Callable[..., GatewayServer]


@contextlib.contextmanager
def vllm_server(speculation: dict[str, Any] | None, log: Path) -> Iterator[str]:
    """Run a server for the length of a block; yields its URL."""
    port = free_port()
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(WEIGHTS), "--port", str(port)]
    command += ["--served-model-name", MODEL, "--max-model-len", "1024", "--enforce-eager", "--host", "127.0.0.1"]
    command.append("--enable-per-request-metrics")
    if speculation:
        command += ["--speculative-config", json.dumps(speculation), "--per-request-spec-decode-metrics", "summary"]
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    env |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: process.poll() is not None or _healthy(url), START_S)
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        yield url
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(url: str) -> bool:
    try:
        return request("GET", f"{url}/health")[0] == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    assert PYTHON.exists(), "run `make test-vllm`, which installs vLLM's CPU build"
    with vllm_server(None, tmp_path_factory.mktemp("vllm") / "plain.log") as url:
        yield url


def _ask(gateway: GatewayServer, arm: str, prompt: str, **fields: Any) -> tuple[int, dict[str, str], bytes]:
    return ask(gateway, arm, prompt, model=MODEL, max_tokens=24, seconds=ANSWER_S, **fields)


@pytest.mark.parametrize("method", list(SPECULATION))
def test_two_pools(method: str, plain: str, start_gateway: Start, tmp_path: Path) -> None:
    arm = f"{method}-k4"
    with vllm_server(SPECULATION[method], tmp_path / "spec.log") as spec:
        gateway = two_pools(start_gateway, "vllm", (spec, arm), plain, seconds=60)
        told = get(f"{gateway.url}/readyz")[1]["backends"]
        assert [(one["arms"], one["detail"]) for one in (told["spec"], told["plain"])] == [
            ([f"spec/{arm}"], ""),
            (["plain/plain"], ""),
        ]
        for prompt in PROMPTS:
            answers = [_ask(gateway, name, prompt) for name in (f"spec/{arm}", "plain/plain")]
            assert [status for status, _, _ in answers] == [200, 200]
            texts = [json.loads(raw)["choices"][0]["message"]["content"] for _, _, raw in answers]
            assert texts[0] == texts[1]
            assert all("metrics" not in json.loads(raw) for _, _, raw in answers)
            status, _, raw = _ask(gateway, f"spec/{arm}", prompt, stream=True)
            assert (status, b'"usage"' in raw, b"[DONE]" in raw) == (200, False, True)
        wait_until(lambda: len(gateway.records) == 3 * len(PROMPTS))
        assert not any(record.spec.estimated for record in gateway.records if record.arm.k and record.spec)
        assert all(record.tpot_s for record in gateway.records)  # of answers that were not streamed as well
        counts_agree(gateway, spec, "vllm", least=0)
        status, headers, _ = _ask(gateway, "", PROMPTS[1], min_p=0.1, temperature=0.8)
        assert (status, headers["x-breakeven-arm"]) == (200, "plain/plain")  # vLLM would refuse it on the other pool
        _answers_are_as_recorded(spec)


def _answers_are_as_recorded(url: str) -> None:
    """Compare the form of a live server's answers with the recorded ones, which the adapter's tests read."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 24, "temperature": 0}
    assert json.loads(request("GET", f"{url}/version")[2])["version"] == RECORDED["version"]
    answer = json.loads(request("POST", f"{url}/v1/chat/completions", body, seconds=ANSWER_S)[2])
    told, recorded = (each["metrics"]["speculative_decoding"] for each in (answer, RECORDED["chat"]))
    assert told.keys() == recorded.keys()
    assert answer["metrics"]["generation_time_ms"] > 0
    assert answer["usage"].keys() == RECORDED["chat"]["usage"].keys()
    status, _, raw = request(
        "POST", f"{url}/v1/chat/completions", {**body, "temperature": 0.8, "min_p": 0.1}, seconds=ANSWER_S
    )
    assert (status, json.loads(raw)["error"]["message"]) == (400, RECORDED["min_p"]["error"]["message"])
    page = read_metrics(request("GET", f"{url}/metrics")[2].decode())
    assert read_metrics(RECORDED["metrics"]).keys() <= page.keys()
