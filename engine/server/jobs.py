"""From OpenAI's request to the core's: checks, renders the prompt, tokenises. Called by the app, maybe in a thread."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engine.errors import RequestRejected
from engine.messages import Speculation
from engine.sequence import GenerateRequest, SamplingParams
from engine.server import params
from engine.server.params import Limits
from engine.server.schemas import ChatRequest, CompletionRequest, Message, SamplingFields
from engine.tokenizer import ChatTokenizer

DEFAULT_COMPLETION_TOKENS = 16
MAX_SEQUENCES = 256


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request, checked: its sequences and how their answer is to be written."""

    id: str
    kind: Literal["chat", "completion"]
    created: int
    requests: list[GenerateRequest]
    """One per choice, in the order of their index."""
    prompt_tokens: int
    """Each prompt counted once."""
    speculation: Speculation
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: list[str] = field(default_factory=list)
    """Completions with `echo`: the prompt's text, by choice."""
    tool_calls: bool = False
    """Whether the answer may call tools, in the form that `tool_calls.py` reads."""


def chat_job(body: ChatRequest, tokenizer: ChatTokenizer, limits: Limits) -> Job:
    """Check a chat request. Raises RequestRejected naming the field."""
    params.check_messages(body.messages)
    params.check_stream(body)
    logprobs = params.chat_logprobs(body.logprobs, body.top_logprobs)
    tools = _tools(body, tokenizer)
    prompt = tokenizer.render(_turns(body.messages), tools)
    limit = params.output_limit(body, len(prompt), limits, default=None, prompt_param="messages")
    sampling = params.sampling_of(body, limits, max_tokens=limit, logprobs=logprobs)
    job = _job("chat", "chatcmpl", body, [prompt], [sampling], tokenizer, limits)
    return replace(job, tool_calls=tools is not None and tokenizer.writes_tool_calls)


def completion_job(body: CompletionRequest, tokenizer: ChatTokenizer, limits: Limits) -> Job:
    """Check a completions request. Raises RequestRejected naming the field."""
    params.check_stream(body)
    logprobs = params.completion_logprobs(body.logprobs)
    if body.suffix:
        raise params.refuse("suffix", "null: this engine does not fill in the middle", body.suffix)
    if body.best_of is not None and body.best_of != params.choices_of(body):
        raise params.refuse("best_of", "the value of n, or null", body.best_of)
    if body.echo and logprobs is not None:
        raise RequestRejected("echo: not together with logprobs", param="echo")
    prompts = _prompts(body.prompt, tokenizer, limits)
    samplings = []
    for prompt in prompts:
        limit = params.output_limit(body, len(prompt), limits, default=DEFAULT_COMPLETION_TOKENS, prompt_param="prompt")
        samplings.append(params.sampling_of(body, limits, max_tokens=limit, logprobs=logprobs))
    job = _job("completion", "cmpl", body, prompts, samplings, tokenizer, limits)
    if body.echo:
        texts = [tokenizer.decode(prompt) for prompt in prompts for _ in range(params.choices_of(body))]
        return replace(job, echo=texts)
    return job


def _job(  # noqa: PLR0917 - called by the two functions above only
    kind: Literal["chat", "completion"],
    prefix: str,
    body: SamplingFields,
    prompts: Sequence[list[int]],
    samplings: Sequence[SamplingParams],
    tokenizer: ChatTokenizer,
    limits: Limits,
) -> Job:
    n = params.choices_of(body)
    if n * len(prompts) > MAX_SEQUENCES:
        raise params.refuse("n", f"at most {MAX_SEQUENCES} answers over all prompts", n * len(prompts))
    speculation = params.speculation_of(body.speculation, limits)
    predicted: list[int] = []
    if body.prediction is not None:
        text = params.text_of(body.prediction.content, "prediction.content")
        predicted = tokenizer.encode(text, special=False)
    job_id = f"{prefix}-{uuid.uuid4().hex}"
    requests = [
        GenerateRequest(
            request_id=f"{job_id}-{at * n + choice}",
            prompt_ids=prompt,
            sampling=_reseeded(sampling, choice),
            speculation=speculation,
            prediction_ids=predicted,
            cache_key=body.cache_salt or "",
        )
        for at, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
        for choice in range(n)
    ]
    options = body.stream_options
    return Job(
        id=job_id,
        kind=kind,
        created=int(time.time()),
        requests=requests,
        prompt_tokens=sum(map(len, prompts)),
        speculation=speculation,
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
    )


def _reseeded(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Give each of n answers a seed of its own; the first keeps the client's."""
    if sampling.seed is None or choice == 0:
        return sampling
    return replace(sampling, seed=sampling.seed + choice)


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages as chat templates expect them: content a string, tool arguments parsed."""
    turns = []
    for at, message in enumerate(messages):
        turn: dict[str, Any] = {
            "role": "system" if message.role == "developer" else message.role,
            "content": params.text_of(message.content, f"messages[{at}].content"),
        }
        if message.name is not None:
            turn["name"] = message.name
        if message.tool_call_id is not None:
            turn["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            turn["tool_calls"] = [_parsed_call(call, f"messages[{at}].tool_calls") for call in message.tool_calls]
        turns.append(turn)
    return turns


def _parsed_call(call: Mapping[str, Any], path: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise params.refuse(path, "calls with a function and its name", shown=False)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise params.refuse(f"{path}.function.arguments", "a string of JSON", arguments) from error
    return {**call, "function": {**function, "arguments": arguments}}


def _tools(body: ChatRequest, tokenizer: ChatTokenizer) -> list[dict[str, Any]] | None:
    """Return the tools to render. Raises RequestRejected where the model's template knows none."""
    param = "tools" if body.tools else "functions"
    tools = body.tools or [{"type": "function", "function": function} for function in body.functions or []]
    if not tools or body.tool_choice == "none":
        return None
    if not tokenizer.has_tool_template:
        raise RequestRejected(f"{param}: this model's chat template does not support tools", param=param)
    if body.tool_choice not in {None, "auto"} if isinstance(body.tool_choice, str) else body.tool_choice is not None:
        raise params.refuse("tool_choice", "auto or none: this engine cannot force a call", body.tool_choice)
    return tools


def _prompts(prompt: str | list[str | int | list[int]], tokenizer: ChatTokenizer, limits: Limits) -> list[list[int]]:
    """Return the ids of one or several prompts, given as text or as ids."""
    if isinstance(prompt, str):
        return [_ids(prompt, "prompt", tokenizer, limits)]
    if not prompt:
        raise params.refuse("prompt", "a string, strings, token ids or lists of token ids", shown=False)
    if all(isinstance(item, int) for item in prompt):
        return [_ids([item for item in prompt if isinstance(item, int)], "prompt", tokenizer, limits)]
    found = []
    for at, item in enumerate(prompt):
        if isinstance(item, int):
            raise params.refuse(f"prompt[{at}]", "prompts of one kind", item)
        found.append(_ids(item, f"prompt[{at}]", tokenizer, limits))
    return found


def _ids(prompt: str | list[int], path: str, tokenizer: ChatTokenizer, limits: Limits) -> list[int]:
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
        if not ids and tokenizer.bos_id is not None:
            return [tokenizer.bos_id]
    else:
        ids = prompt
        for token in ids:
            if not 0 <= token < limits.vocab_size:
                raise params.refuse(path, f"token ids from 0 to {limits.vocab_size - 1}", token)
    if not ids:
        raise params.refuse(path, "a prompt that is not empty", shown=False)
    return ids
