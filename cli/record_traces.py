"""`breakeven record-traces`: acceptance traces of the engine's own drafters, for `breakeven simulate`.

Each prompt is answered once, greedily and without speculation; then every drafter is asked, at every position of that
output, what it would have proposed there. That is exact for greedy decoding, which speculation never changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.core import EngineCore
    from engine.models import LoadedModel

FILE = click.Path(path_type=Path)


@click.command("record-traces")
@click.option("--prompts", required=True, type=FILE, help="JSON lines: id, task, and messages or prompt.")
@click.option("--out", required=True, type=FILE, help="Where the traces go, one JSON object a line.")
@click.option("--method", "methods", multiple=True, help="Drafter to record; repeatable (default: all there are).")
@click.option("--max-tokens", default=256, show_default=True, type=click.IntRange(2, 1 << 16))
@click.option("--cut", default=16, show_default=True, type=click.IntRange(1, 64), help="Longest draft.")
@click.option("--batch", default=8, show_default=True, type=click.IntRange(1, 256), help="Prompts decoded together.")
@click.option("--model", help="Target (default: the built-in one).")
@click.option("--draft-model", help="Draft for method draft_model.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["auto", "float32", "bfloat16"]))
def record_traces(*, prompts: Path, out: Path, methods: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 - click
    """Answer prompts with the engine and write what its drafters would have got accepted."""
    from cli.simulation.errors import InputError
    from engine.config import DEFAULT_MODEL, EngineConfig
    from engine.errors import EngineError
    from engine.models.load import load_models

    try:
        rows = list(_read(prompts))
        config = EngineConfig(
            model=options["model"] or DEFAULT_MODEL,
            draft_model=options["draft_model"],
            dtype=options["dtype"],
            max_batch=options["batch"],
            kv_tokens=options["batch"] * 4096,
            profile=False,
        )
        target, draft = load_models(config)
        recorder = Recorder(target, draft, config, methods, options["cut"])
        with out.open("w", encoding="utf-8") as file, click.progressbar(rows, label="prompts") as bar:
            for start in range(0, len(rows), options["batch"]):
                chunk = rows[start : start + options["batch"]]
                for trace in recorder.record(chunk, options["max_tokens"]):
                    file.write(json.dumps(trace) + "\n")
                bar.update(len(chunk))
    except (InputError, EngineError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error


class Recorder:
    """Answers prompts and asks the drafters about every position of the answers."""

    def __init__(
        self,
        target: LoadedModel,
        draft: LoadedModel | None,
        config: EngineConfig,
        methods: Sequence[str],
        cut: int,
    ) -> None:
        from engine.core import EngineCore
        from engine.spec_decode.proposals import Proposals
        from engine.tokenizer import ChatTokenizer

        self._core: EngineCore = EngineCore(target, config)
        self._proposals = Proposals(config, draft, vocab_size=target.vocab_size)
        self._tokenizer = ChatTokenizer(target)
        self._encode = target.tokenizer.encode
        self._cut = cut
        unknown = [method for method in methods if method not in self._proposals.methods]
        if unknown:
            known = ", ".join(self._proposals.methods)
            raise click.BadParameter(f"--method {unknown[0]}: expected one of {known}")
        self._methods = list(methods) or self._proposals.methods

    def record(self, rows: Sequence[dict[str, Any]], max_tokens: int) -> Iterator[dict[str, Any]]:
        """Yield the traces of some prompts that are decoded together."""
        prompts = {str(at): self._prompt(row) for at, row in enumerate(rows)}
        outputs = self._answer(prompts, max_tokens)
        for at, row in enumerate(rows):
            output = outputs[str(at)]
            if not output:
                continue
            by_method = {method: self._ask(method, prompts[str(at)], output) for method in self._methods}
            yield {
                "id": row["id"],
                "task": row["task"],
                "prompt_tokens": len(prompts[str(at)]),
                "emitted": {method: emitted for method, (emitted, _) in by_method.items()},
                "drafted": {method: drafted for method, (_, drafted) in by_method.items()},
            }

    def _prompt(self, row: dict[str, Any]) -> list[int]:
        if "messages" in row:
            return self._tokenizer.render(row["messages"])
        ids: list[int] = self._encode(row["prompt"])
        return ids

    def _answer(self, prompts: dict[str, list[int]], max_tokens: int) -> dict[str, list[int]]:
        from engine.messages import Speculation
        from engine.sequence import GenerateRequest, SamplingParams

        outputs: dict[str, list[int]] = {name: [] for name in prompts}
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        for name, ids in prompts.items():
            self._core.add(GenerateRequest(name, ids, sampling, Speculation("plain", 0)))
        while self._core.has_work():
            for output in self._core.step():
                outputs[output.request_id] += output.token_ids
        return outputs

    def _ask(self, method: str, prompt: list[int], output: list[int]) -> tuple[list[int], list[int]]:
        """Return emitted and drafted at each position of an output."""
        from engine.control import Controller
        from engine.messages import Speculation
        from engine.sampler import SamplerState
        from engine.sequence import GenerateRequest, SamplingParams
        from engine.sequence import Sequence as Decoding

        params = SamplingParams(temperature=0.0)
        request = GenerateRequest("recorded", prompt, params, Speculation(method, self._cut))
        sequence = Decoding(request, Controller(self._cut, None), 0.0, list(prompt), len(prompt))
        state = SamplerState(params, prompt, 0)
        emitted, drafted = [], []
        for position in range(len(output)):
            (draft,) = self._proposals.propose([(sequence, state, self._cut)])
            tokens = list(draft.tokens)[: self._cut]
            held = 0
            while held < len(tokens) and position + held < len(output) and tokens[held] == output[position + held]:
                held += 1
            emitted.append(held + 1)
            drafted.append(len(tokens))
            sequence.tokens.append(output[position])
        self._proposals.release(sequence)
        return emitted, drafted


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the prompts of a file. Raises InputError naming file, line and field."""
    from cli.simulation.errors import InputError

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(str(path), None, "", "expected UTF-8 text") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(str(path), number, "", f"expected one JSON object a line ({error})") from error
        if not isinstance(row, dict) or not isinstance(row.get("task"), str):
            raise InputError(str(path), number, "task", "expected a non-empty string")
        if not isinstance(row.get("messages"), list) and not isinstance(row.get("prompt"), str):
            raise InputError(str(path), number, "messages", "expected a list of messages (or a string as prompt)")
        yield {"id": str(number)} | row
