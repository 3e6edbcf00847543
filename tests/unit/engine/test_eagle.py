"""The feature-fed head: what it computes, that it leaves outputs as they are, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention import RowInput
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ModelError
from engine.kv_cache import KVPool
from engine.models import LoadedModel
from engine.spec_decode import eagle
from engine.spec_decode.eagle_layer import EagleLayer
from engine.spec_decode.head_file import read_head
from tests.fixtures.core import generate, make_core, prompts, random_model, request, run
from tests.fixtures.heads import features_of, fitted_head, head_file, random_head

TEXT = [5, 9, 17, 200, 31, 77, 8, 120, 64, 19, 91, 33]


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random heads are never sure of anything: let them draft all the same."""
    monkeypatch.setattr(eagle, "FLOOR", 0.0)


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return random_model("llama", seed=5)


@pytest.fixture(scope="module")
def head(target: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fitted to what the target says to the prompts of the greedy test, so that some drafts are accepted."""
    texts = [text + generate(target, text, 24) for text in prompts(6, seed=3)]
    return head_file(tmp_path_factory.mktemp("head"), fitted_head(target, texts))


def test_the_engine_shows_the_targets_hidden_states(target: LoadedModel) -> None:
    """In any batch, by chunks and after roll-backs, an observer sees what transformers computes."""
    core = make_core(target, target, prefill_chunk=7, max_batch=3)
    seen: dict[str, list[torch.Tensor]] = {}

    def observe(parts: Any) -> None:
        for sequence, features in parts:
            rows = seen.setdefault(sequence.request_id, [])
            del rows[sequence.row.length - len(features) :]
            rows.extend(features)

    core.watch((1, 2), observe)
    texts = prompts(5, seed=2)
    asked = [request(str(at), text, method=("draft_model", "ngram")[at % 2], k=3) for at, text in enumerate(texts)]
    answers = run(core, asked)
    for one in asked:
        tokens = one.prompt_ids + answers[one.request_id].tokens
        want = features_of(target, tokens)[: len(seen[one.request_id])]
        got = torch.stack(seen[one.request_id])[: len(want)]
        assert len(want) >= len(tokens) - 1
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_the_engine_drafts_what_was_trained(target: LoadedModel, tmp_path: Path) -> None:
    """Logits of the engine's layer, step by step with its own states, are those of the unrolled training pass."""
    features = features_of(target, TEXT)
    trained = random_head(target)
    with torch.inference_mode():
        unrolled = list(trained.unrolled(torch.tensor([TEXT[1:]]), features[None, :-1], 4))
    layer = EagleLayer(read_head(Path(head_file(tmp_path, trained))), target)
    for base in (2, 6):
        row = KVPool(layer.kv_shape, 256).allocate(32)
        assert row is not None
        logits, state = layer.forward([RowInput(row, TEXT[1 : base + 2], 1)], layer.fuse(features[: base + 1]))
        for step in range(4):
            torch.testing.assert_close(logits[0], unrolled[step][0, base + step], rtol=1e-3, atol=1e-3)
            if step < 3:
                logits, state = layer.forward([RowInput(row, [TEXT[base + step + 2]], 1)], state)


def test_greedy_output_is_the_targets(target: LoadedModel, head: str) -> None:
    """Eagle, hybrid and plain requests in one batch, at several draft lengths."""
    texts = prompts(6, seed=3)
    want = [generate(target, text, 24) for text in texts]
    arms = [("eagle", 4), ("hybrid", 4), ("plain", 0), ("eagle", 1), ("eagle", 8), ("hybrid", 2)]
    asked = [
        request(str(at), text, method=method, k=k)
        for at, (text, (method, k)) in enumerate(zip(texts, arms, strict=True))
    ]
    answers = run(make_core(target, max_batch=4, draft_head=head), asked)
    assert [answers[str(at)].tokens for at in range(len(texts))] == want
    assert sum(one.metrics.speculative_decoding.num_accepted_draft_tokens for one in answers.values())


def test_rounds_read_only_what_is_true(target: LoadedModel, head: str) -> None:
    """Drafts after any history are those of a fresh request whose prompt is the text so far."""
    core = make_core(target, draft_head=head, prefix_reuse=False)
    text = prompts(1, seed=8)[0]
    drafts: dict[int, list[int]] = {}
    propose = core._proposals.propose

    def spy(wants: Any) -> Any:
        found = propose(wants)
        drafts.update((len(want[0].tokens), list(draft.tokens)) for want, draft in zip(wants, found, strict=True))
        return found

    core._proposals.propose = spy  # type: ignore[method-assign]
    output = run(core, [request("a", text, method="eagle", k=3)])["a"].tokens
    later = {length: draft for length, draft in drafts.items() if len(draft) == 3 and length > len(text) + 3}
    assert len(later) > 3
    for length, draft in list(later.items())[:4]:
        drafts.clear()
        fresh = (list(text) + output)[: length - 1]
        run(core, [request("b", fresh, method="eagle", k=3, max_tokens=5)])
        assert drafts[length] == draft


def test_a_draft_ends_where_the_head_is_unsure(target: LoadedModel, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = prompts(1, seed=3)[0]
    drafted = []
    for floor in (0.0, 0.3, 1.0):
        monkeypatch.setattr(eagle, "FLOOR", floor)
        answer = run(make_core(target, draft_head=head), [request("a", text, method="eagle", k=4)])["a"]
        assert answer.tokens == generate(target, text, 24)
        drafted.append(answer.metrics.speculative_decoding.num_draft_tokens)
    assert drafted[0] > drafted[1] >= drafted[2] == 0


def test_a_trimmed_vocabulary_and_penalties(target: LoadedModel, tmp_path: Path) -> None:
    """Only known tokens are proposed, and processed logits are drafted from exactly."""
    path = head_file(tmp_path, random_head(target, skip=2))
    asked = [request("a", TEXT, k=0, repetition_penalty=1.4, max_tokens=30)]
    want = run(make_core(target), asked)["a"].tokens
    core = make_core(target, draft_head=path)
    got = run(core, [request("a", TEXT, method="eagle", k=4, repetition_penalty=1.4, max_tokens=30)])["a"]
    assert got.tokens == want
    assert got.metrics.speculative_decoding.num_draft_tokens


def test_prefix_reuse_only_shortens_the_drafts_context(target: LoadedModel, head: str) -> None:
    core = make_core(target, draft_head=head)
    text = prompts(1, seed=4, low=30, high=40)[0]
    first = run(core, [request("a", text, method="eagle", k=3)])["a"].tokens
    turn = text + first + [7, 8, 9]
    second = run(core, [request("b", turn, method="eagle", k=3)])["b"]
    assert second.last is not None
    assert second.last.cached_prompt_tokens
    assert second.tokens == generate(target, turn, 24)


@pytest.mark.verify
def test_costs_are_profiled(target: LoadedModel, head: str, tmp_path: Path) -> None:
    config = EngineConfig(kv_tokens=4096, max_batch=2, max_k=2, draft_head=head, models_dir=str(tmp_path))
    core = EngineCore(target, config)
    while core.profile_once():
        pass
    drafted = {cell.method for cell in core.costs().cells if cell.k == 2 and cell.draft_s > 0}
    assert {"eagle", "hybrid"} <= drafted


def test_what_is_no_head_is_refused(target: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected a file made by"):
        make_core(target, draft_head=str(tmp_path / "none.safetensors"))
    (tmp_path / "text.safetensors").write_text("no head")
    with pytest.raises(ModelError, match=r"text\.safetensors: damaged"):
        make_core(target, draft_head=str(tmp_path / "text.safetensors"))
    other = head_file(tmp_path, random_head(random_model("llama", layers=3), taps=(1, 3)))
    with pytest.raises(ModelError, match="made for llama"):
        make_core(target, draft_head=other)
