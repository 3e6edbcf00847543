"""The core's outputs as OpenAI's responses and chunks. One renderer for each HTTP request; called by `answers.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.messages import EngineMetrics
from engine.sequence import StepOutput, TokenLogprob
from engine.server.jobs import Job
from engine.server.tool_calls import ToolCallParser
from engine.server.wire import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprob,
    ChatLogprobs,
    ChatMessage,
    CompletionChoice,
    CompletionLogprobs,
    CompletionTokensDetails,
    Envelope,
    PromptTokensDetails,
    TopLogprob,
    Usage,
)
from engine.tokenizer import ChatTokenizer


@dataclass(slots=True)
class _Choice:
    """What one choice has produced so far."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    offset: int = 0
    """Characters written, for `text_offset`."""
    last: StepOutput | None = None
    finish_reason: str = "stop"
    tools: ToolCallParser | None = None


def _finish(choice: _Choice) -> str:
    """Return OpenAI's finish reason: an answer that calls tools has stopped for them."""
    called = choice.tools is not None and choice.tools.count > 0
    return "tool_calls" if called and choice.finish_reason == "stop" else choice.finish_reason


class Renderer:
    """Collects the outputs of one request, and writes the response or its chunks."""

    def __init__(self, job: Job, tokenizer: ChatTokenizer, *, model: str, fingerprint: str) -> None:
        self._job = job
        self._tokenizer = tokenizer
        self._model = model
        self._fingerprint = fingerprint
        self._choices = [_Choice(tools=ToolCallParser() if job.tool_calls else None) for _ in job.requests]
        self._wants_logprobs = job.requests[0].sampling.logprobs is not None

    def take(self, index: int, output: StepOutput) -> None:
        """Add one output of one choice to the response."""
        choice = self._choices[index]
        choice.text.append(output.text)
        choice.logprobs += output.logprobs
        self._count(choice, output)

    def response(self) -> Envelope:
        """Return the whole response, once every choice has finished."""
        chat = self._job.kind == "chat"
        make = self._chat_choice if chat else self._completion_choice
        choices = [make(index, choice) for index, choice in enumerate(self._choices)]
        kind = "chat.completion" if chat else "text_completion"
        return self._envelope(kind, choices, usage=self.usage(), metrics=self.metrics())

    def chunk(self, index: int, output: StepOutput) -> Envelope | None:
        """Return the chunk for one output; None where it says nothing."""
        choice = self._choices[index]
        first = choice.last is None
        self._count(choice, output)
        if not (first or output.text or output.logprobs or output.finish_reason):
            return None
        make = self._chat_part if self._job.kind == "chat" else self._completion_part
        kind = "chat.completion.chunk" if self._job.kind == "chat" else "text_completion"
        part = make(index, choice, output, first=first)
        choice.offset += len(output.text)
        if self._job.continuous_usage:
            return self._envelope(kind, [part], usage=self.usage())
        return self._envelope(kind, [part], usage=None if self._job.include_usage else msgspec.UNSET)

    def usage_chunk(self) -> Envelope:
        """Return the last chunk of a stream: usage and metrics without choices."""
        kind = "chat.completion.chunk" if self._job.kind == "chat" else "text_completion"
        return self._envelope(kind, [], usage=self.usage(), metrics=self.metrics())

    def usage(self) -> Usage:
        """Return the tokens so far."""
        last = [choice.last for choice in self._choices if choice.last is not None]
        completion = sum(output.completion_tokens for output in last)
        return Usage(
            prompt_tokens=self._job.prompt_tokens,
            completion_tokens=completion,
            total_tokens=self._job.prompt_tokens + completion,
            prompt_tokens_details=PromptTokensDetails(max((out.cached_prompt_tokens for out in last), default=0)),
            completion_tokens_details=CompletionTokensDetails(
                accepted_prediction_tokens=sum(output.accepted_prediction_tokens for output in last),
                rejected_prediction_tokens=sum(output.rejected_prediction_tokens for output in last),
            ),
        )

    def metrics(self) -> EngineMetrics | None:
        """Return the request's metrics; null for several choices, whose steps overlap."""
        if len(self._choices) != 1 or self._choices[0].last is None:
            return None
        return self._choices[0].last.metrics

    def _envelope(self, kind: str, choices: list[Any], **extra: Any) -> Envelope:  # noqa: ANN401 - Envelope's own fields
        return Envelope(
            id=self._job.id,
            object=kind,
            created=self._job.created,
            model=self._model,
            choices=choices,
            system_fingerprint=self._fingerprint,
            **extra,
        )

    def _count(self, choice: _Choice, output: StepOutput) -> None:
        choice.last = output
        if output.finish_reason is not None:
            choice.finish_reason = output.finish_reason

    def _chat_choice(self, index: int, choice: _Choice) -> ChatChoice:
        message = ChatMessage("".join(choice.text))
        if choice.tools is not None:
            content, calls = choice.tools.push("".join(choice.text))
            content += choice.tools.flush()
            for call in calls:
                call.index = msgspec.UNSET
            message = ChatMessage(content or (None if calls else ""), tool_calls=calls or msgspec.UNSET)
        return ChatChoice(index, message, _finish(choice), self._chat_logprobs(choice.logprobs))

    def _completion_choice(self, index: int, choice: _Choice) -> CompletionChoice:
        echo = self._job.echo[index] if self._job.echo else ""
        logprobs = self._completion_logprobs(choice.logprobs, 0)
        return CompletionChoice(index, echo + "".join(choice.text), choice.finish_reason, logprobs)

    def _chat_part(self, index: int, choice: _Choice, output: StepOutput, *, first: bool) -> ChatChunkChoice:
        text, calls = (output.text, None) if choice.tools is None else choice.tools.push(output.text)
        if choice.tools is not None and output.finish_reason is not None:
            text += choice.tools.flush()
        delta = ChatDelta("assistant" if first else None, text if text or first else None, calls or None)
        finish = None if output.finish_reason is None else _finish(choice)
        return ChatChunkChoice(index, delta, finish, self._chat_logprobs(output.logprobs))

    def _completion_part(self, index: int, choice: _Choice, output: StepOutput, *, first: bool) -> CompletionChoice:
        echo = self._job.echo[index] if first and self._job.echo else ""
        logprobs = self._completion_logprobs(output.logprobs, choice.offset)
        return CompletionChoice(index, echo + output.text, output.finish_reason, logprobs)

    def _chat_logprobs(self, logprobs: list[TokenLogprob]) -> ChatLogprobs | None:
        if not self._wants_logprobs:
            return None
        return ChatLogprobs([self._chat_logprob(one) for one in logprobs])

    def _chat_logprob(self, one: TokenLogprob) -> ChatLogprob:
        text, raw = self._token(one.token_id)
        top = []
        for token, value in one.top:
            other, other_raw = self._token(token)
            top.append(TopLogprob(other, value, other_raw))
        return ChatLogprob(text, one.logprob, raw, top)

    def _completion_logprobs(self, logprobs: list[TokenLogprob], offset: int) -> CompletionLogprobs | None:
        if not self._wants_logprobs:
            return None
        tokens = [self._token(one.token_id)[0] for one in logprobs]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        top = [{self._token(token)[0]: value for token, value in one.top} for one in logprobs]
        return CompletionLogprobs(tokens, [one.logprob for one in logprobs], top, offsets)

    def _token(self, token: int) -> tuple[str, list[int]]:
        raw = self._tokenizer.token_bytes(token)
        return raw.decode("utf-8", "replace"), list(raw)
