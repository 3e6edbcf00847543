"""The engine as it comes out of the box: the built-in model in fp32, every method, within its memory."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from engine.models.store import BUILT_IN
from tests.fixtures.models import engine_running

pytestmark = [pytest.mark.model, pytest.mark.verify]

MODEL = next(iter(BUILT_IN))
MEMORY = 1536 << 20
COPY = "Repeat exactly, nothing else: def add(first, second): return first + second; def sub(first, second): return"


def ask(client: OpenAI, prompt: str, method: str = "plain", k: int = 0, **options: Any) -> ChatCompletion:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        extra_body={"speculation": {"method": method, "k": k}},
        **options,
    )
    assert isinstance(answer, ChatCompletion)
    return answer


def test_out_of_the_box() -> None:
    with engine_running("--dtype", "float32", "--no-profile") as engine:
        client = OpenAI(base_url=f"{engine.url}/v1", api_key="unused", max_retries=0, timeout=90)
        with client:
            capital = ask(client, "What is the capital of France?", max_tokens=12)
            assert "Paris" in (capital.choices[0].message.content or "")
            assert capital.choices[0].finish_reason == "stop"

            plain = ask(client, COPY, max_tokens=24)
            for method in ("ngram", "suffix"):
                answer = ask(client, COPY, method, 4, max_tokens=24)
                assert answer.choices[0].message.content == plain.choices[0].message.content
                spec = answer.model_dump()["metrics"]["speculative_decoding"]
                assert spec["mean_acceptance_length"] > 1.5

            long = client.completions.create(model=MODEL, prompt="one two three " * 400, max_tokens=2)
            assert long.usage is not None
            assert long.usage.prompt_tokens > 1_000
        assert psutil.Process(engine.process.pid).memory_info().rss < MEMORY
