"""Answers prompts with the engine's own core, many at a time, plainly. Called by `cli.recording.run`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from cli.recording.prompts import Prompt
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.models import LoadedModel
from engine.models.load import kv_budget
from engine.sequence import GenerateRequest
from engine.server.jobs import chat_job, completion_job
from engine.server.params import Limits
from engine.server.schemas import ChatRequest, CompletionRequest, decode
from engine.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt with the model's answer."""

    prompt: Prompt
    request: GenerateRequest
    tokens: list[int]
    """The output, end-of-sequence token left out."""


class Generator:
    """Turns prompts into answers. The draft length is 0: a trace holds what the target says by itself."""

    def __init__(self, target: LoadedModel, *, batch: int, max_tokens: int, temperature: float, seed: int) -> None:
        self._config = EngineConfig(
            max_batch=batch,
            kv_tokens=kv_budget(target, batch),
            seed=seed,
            profile=False,
            prefix_reuse=False,  # in bfloat16 an answer would depend on which prompts came before
        )
        self._core = EngineCore(target, self._config)
        self._tokenizer = ChatTokenizer(target)
        window = min(target.max_len, self._config.kv_tokens - self._config.max_k)
        self._limits = Limits(window, target.vocab_size, tuple(self._core.methods), self._config.max_k)
        self._options = {"model": target.name, "max_tokens": max_tokens, "temperature": temperature}

    def request(self, prompt: Prompt) -> GenerateRequest:
        """Return the core's request, as the server would make it. Raises RequestRejected naming the field."""
        raw = msgspec.json.encode(prompt.body | self._options)
        if "messages" in prompt.body:
            job = chat_job(decode(raw, ChatRequest), self._tokenizer, self._limits)
        else:
            job = completion_job(decode(raw, CompletionRequest), self._tokenizer, self._limits)
        return replace(job.requests[0], request_id=prompt.id)

    def answers(self, work: Sequence[tuple[Prompt, GenerateRequest]]) -> Iterator[Answer]:
        """Yield each answer when it is complete, always with a full batch running where there is work for one."""
        waiting = list(reversed(work))
        open_answers: dict[str, Answer] = {}
        while waiting or open_answers:
            while waiting and len(open_answers) < 2 * self._config.max_batch:
                prompt, request = waiting.pop()
                self._core.add(request)
                open_answers[prompt.id] = Answer(prompt, request, [])
            for output in self._core.step():
                answer = open_answers[output.request_id]
                answer.tokens.extend(output.token_ids)
                if output.finish_reason is not None:
                    yield open_answers.pop(output.request_id)
