"""Making a draft: data, training that can be interrupted, and a judgement that the engine's own rounds confirm."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace as replace_entry
from safetensors.torch import save_file

from engine.distill import acceptance, standalone
from engine.distill import train as training
from engine.distill.acceptance import DraftJudge, HeadJudge, ngram_chances
from engine.distill.chosen import held_out
from engine.distill.corpus import Corpus, Text
from engine.distill.generate import Generator, Wish, recipe_of
from engine.distill.head import FeatureHead
from engine.distill.learners import make_head
from engine.distill.lessons import Lessons
from engine.distill.measure import Decoded, Pair, gain
from engine.distill.rounds import Chances, figures, gain_of, hybrid, walk
from engine.distill.train import Progress, Settings, Trainer
from engine.errors import DistillError
from engine.models import LoadedModel
from engine.sequence import StepOutput
from engine.spec_decode.eagle import FLOOR
from engine.spec_decode.head_file import read_head
from engine.spec_decode.ngram import MIN_N
from tests.fixtures.core import generate, make_core, prompts, random_model, request, run
from tests.fixtures.heads import features_of

SETTINGS = Settings(
    kind="eagle",
    layers=1,
    epochs=2,
    batch_tokens=160,
    lr=1e-3,
    unroll=2,
    vocab=200,
    hard=0.5,
    seed=3,
    licence="MIT",
    begin_with=None,
)


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return random_model("llama", seed=5)


def wishes() -> list[Wish]:
    texts = prompts(14, seed=3)
    return [
        Wish(f"p{at}", 0, "code" if at % 2 else "chat", "choose" if at < 4 else "train", 0.0 if at % 3 else 0.8, text)
        for at, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def corpus(target: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    made = Corpus(tmp_path_factory.mktemp("work"), recipe_of(target, max_tokens=20, seed=1))
    Generator(target, made, batch=4).run(wishes(), lambda *_: None)
    return made


def texts_of(corpus: Corpus) -> Iterator[Text]:
    return (text for path in corpus.shards() for text in Corpus.texts(path))


def cut_off(corpus: Corpus) -> list[Text]:
    """Greedy answers that the limit has ended: of others the engine may draft beyond the end, which no corpus tells."""
    found = [text for text in texts_of(corpus) if text.entry.temperature == 0]
    return [text for text in found if text.entry.total - text.entry.prompt == 20]


def test_the_corpus_holds_what_the_target_says_and_computes(corpus: Corpus, target: LoadedModel) -> None:
    found = list(texts_of(corpus))
    assert len(found) == len(wishes())
    for text in found:
        tokens = text.tokens.tolist()
        if text.entry.temperature == 0:
            want = generate(target, tokens[: text.entry.prompt], 20)
            assert tokens[text.entry.prompt :][: len(want)] == want
        want_features = features_of(target, tokens[:-1], corpus.recipe.taps)
        torch.testing.assert_close(text.features.float(), want_features, rtol=2e-2, atol=2e-2)


def test_generation_goes_on_where_it_ended(corpus: Corpus, target: LoadedModel) -> None:
    told: list[int] = []
    Generator(target, corpus, batch=4).run(wishes(), lambda *counts: told.append(counts[0]))
    assert told == []
    with pytest.raises(DistillError, match="made with seed 1, this run has 2"):
        Corpus(corpus.shards()[0].parent.parent, recipe_of(target, max_tokens=20, seed=2))


def test_what_is_finished_is_kept_where_generation_stops(corpus: Corpus, target: LoadedModel, tmp_path: Path) -> None:
    cut = Corpus(tmp_path, corpus.recipe)
    generator = Generator(target, cut, batch=4)
    step, steps = generator._core.step, iter(range(60))

    def stop_at_last() -> list[StepOutput]:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step()

    generator._core.step = stop_at_last  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        generator.run(wishes(), lambda *_: None)
    assert 0 < len(cut.entries()) < len(wishes())
    Generator(target, cut, batch=4).run(wishes(), lambda *_: None)
    whole = {text.entry.id: text.tokens.tolist() for text in texts_of(corpus)}
    assert {text.entry.id: text.tokens.tolist() for text in texts_of(cut)} == whole


def train(target: LoadedModel, corpus: Corpus, out: Path, *, pieces: bool) -> tuple[Trainer, list[Progress]]:
    out.mkdir()
    seen: list[Progress] = []

    def tell(progress: Progress) -> None:
        seen.append(progress)
        if pieces and progress.step < progress.steps:
            raise KeyboardInterrupt

    while True:
        trainer = Trainer(target, [corpus], out, SETTINGS)
        try:
            trainer.run(tell, judge_every=3)
            return trainer, seen
        except KeyboardInterrupt:
            trainer.save()


def test_an_interrupted_training_ends_as_an_uninterrupted_one(
    corpus: Corpus, target: LoadedModel, tmp_path: Path
) -> None:
    whole, seen = train(target, corpus, tmp_path / "whole", pieces=False)
    parts, _ = train(target, corpus, tmp_path / "parts", pieces=True)
    for name, weight in whole.draft.weights().items():
        torch.testing.assert_close(weight, parts.draft.weights()[name])
    half = len(seen) // 2
    assert sum(one.top1 for one in seen[half:]) > sum(one.top1 for one in seen[:half])
    assert (tmp_path / "whole" / "eagle.safetensors").is_file()
    with pytest.raises(DistillError, match="another run"):
        Trainer(target, [corpus], tmp_path / "whole", replace(SETTINGS, lr=1e-4))


def test_limited_training_goes_on(corpus: Corpus, target: LoadedModel, tmp_path: Path) -> None:
    trainer = Trainer(target, [corpus], tmp_path, SETTINGS)
    assert not trainer.run(lambda _: None, judge_every=100, limit_s=1e-9)
    assert trainer._optimizer.param_groups[0]["lr"] < 0.06 * SETTINGS.lr  # time was up: the rate has fallen
    assert Trainer(target, [corpus], tmp_path, SETTINGS).run(lambda _: None, judge_every=100)
    with pytest.raises(DistillError, match="another run"):
        Trainer(target, [corpus], tmp_path, replace(SETTINGS, begin_with="0" * 64))


def test_a_mean_with_the_beginning_is_kept_where_it_is_better(
    corpus: Corpus, target: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(target, [corpus], tmp_path, SETTINGS)
    begin = {name: weight.detach().clone() for name, weight in trainer.draft.weights().items()}
    trainer.run(lambda _: None, judge_every=1000, limit_s=1e-9)
    with torch.no_grad():
        trainer.draft.weights()["down.weight"].add_(1.0)  # as if much had been learnt
    ends = {name: weight.detach().clone() for name, weight in trainer.draft.weights().items()}
    wanted = torch.lerp(begin["down.weight"], ends["down.weight"], 0.3)

    def near(draft: FeatureHead, *_: object) -> dict[str, float]:
        return {"all": 9.0 - float((draft.down.weight.detach() - wanted).abs().mean())}

    monkeypatch.setattr(training, "held_out", near)
    trainer._judge_now()
    kept = read_head(tmp_path / "eagle.safetensors").weights["down.weight"]
    torch.testing.assert_close(kept.float(), wanted, rtol=1e-2, atol=1e-3)
    assert torch.equal(trainer.draft.weights()["down.weight"], ends["down.weight"])


def test_later_steps_are_learnt_where_earlier_drafts_were_right(corpus: Corpus, target: LoadedModel) -> None:
    """The training pass says at its places what the pass over all positions says there."""
    lessons = Lessons([corpus], "train")
    vocab = lessons.vocabulary(200, target)
    places = torch.full((target.vocab_size,), -1)
    places[vocab] = torch.arange(len(vocab))
    head = make_head(target, lessons, corpus.recipe.taps, vocab, fit=True, seed=0)
    batch = next(lessons.batches(400, places, rng=random.Random(0)).after(0))
    said = batch.said.flatten()
    with torch.inference_mode():
        everywhere = [logits.flatten(0, 1) for logits in head.steps(batch, 3)]
        chained = list(head.chained(batch, 3))
    assert torch.equal(chained[0][1], ((batch.weight > 0) & (batch.said >= 0)).flatten().nonzero().squeeze(-1))
    assert len(chained[1][1])
    for step, (logits, at) in enumerate(chained):
        torch.testing.assert_close(logits, everywhere[step][at], rtol=1e-4, atol=1e-4)
        for before in range(step):
            earlier = at - step + before
            assert torch.equal(everywhere[before][earlier].argmax(-1), said[earlier])


def clear(judge: HeadJudge, text: Text) -> bool:
    """Whether no draft is so near the floor that rounding decides about it."""
    found = []
    for floor in (FLOOR - 0.003, FLOOR + 0.003):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(acceptance, "FLOOR", floor)
            found.append(judge.chances(text).accept)
    return found[0] == found[1]


def test_judged_rounds_are_the_engines_own(corpus: Corpus, target: LoadedModel, tmp_path: Path) -> None:
    """Greedy held-out answers, decoded anew by the engine: the same rounds, accepted tokens and empty steps."""
    trainer, _ = train(target, corpus, tmp_path / "run", pieces=False)
    trainer.draft.write(tmp_path / "eagle.safetensors")
    head = FeatureHead.of_file(read_head(tmp_path / "eagle.safetensors"), target)
    judge = HeadJudge(head, target, 4)
    greedy = [text for text in cut_off(corpus) if clear(judge, text)]
    assert len(greedy) > 3
    chances = [judge.chances(text) for text in greedy]
    lookups = [ngram_chances(text, 4, MIN_N) for text in greedy]
    core = make_core(target, draft_head=str(tmp_path / "eagle.safetensors"), prefix_reuse=False)
    for method, found in (("eagle", chances), ("ngram", lookups)):
        expected = walk(found, 3, random.Random(0))
        asked = [
            request(
                f"{method}{at}", text.tokens[: text.entry.prompt].tolist(), method=method, k=3, max_tokens=20,
                ignore_eos=False,
            )
            for at, text in enumerate(greedy)
        ]  # fmt: skip
        metrics = [answer.metrics for answer in run(core, asked).values()]
        own = [one.speculative_decoding for one in metrics]
        assert expected.rounds == sum(one.num_spec_steps for one in own)
        assert expected.emitted - expected.rounds == sum(one.num_accepted_draft_tokens for one in own)
        assert expected.zero == sum(one.acceptance_histogram[0] for one in own if one.acceptance_histogram)
        assert expected.drafted == sum(one.num_draft_tokens for one in own)


def test_answers_of_one_and_two_tokens_are_judged_too(corpus: Corpus, target: LoadedModel, tmp_path: Path) -> None:
    short = Corpus(tmp_path / "short", corpus.recipe)
    for more in (1, 2):
        text = cut_off(corpus)[more]
        total = text.entry.prompt + more
        entry = replace_entry(text.entry, task=f"of {more}", split="choose", total=total)
        short.add([replace(text, entry=entry, tokens=text.tokens[:total], features=text.features[: total - 1])])
    vocab = torch.arange(target.vocab_size)
    head = make_head(target, Lessons([corpus], "train"), corpus.recipe.taps, vocab, fit=True, seed=1)
    told = held_out(head, Lessons([short], "choose"), vocab)
    assert 1.0 <= told["of 1"] <= 2.0
    assert 1.0 <= told["of 2"] <= 3.0


def test_figures_and_gain() -> None:
    sure = Chances("code", 5, 9, [[-1.0] + [1.0] * 8, [-1.0] + [1.0] * 8])
    found = figures(walk([sure], 2, random.Random(0)))
    assert (found.a, found.z, found.acceptance) == (pytest.approx(8 / 3, abs=1e-3), 0.0, [1.0, 1.0])
    assert gain_of(found, {2: (0.5, 0.1)}, looks=True) == pytest.approx(found.tokens_per_step / 1.6)
    between = 1 + 0.2 + (0.3 + 0.1) * 2 / 3  # rounds of 1.67 drafts on average
    assert gain_of(found, {1: (0.2, 0.0), 2: (0.5, 0.1)}, looks=True) == pytest.approx(8 / 3 / between, rel=1e-3)
    none = Chances("code", 5, 9, [[-1.0] * 9, [-1.0] * 9])
    idle = figures(walk([none], 2, random.Random(0)))
    assert idle.undrafted_share == 1.0
    assert gain_of(idle, {1: (0.2, 0.0), 2: (0.5, 0.1)}, looks=True) == pytest.approx(1 / 1.2)
    assert gain_of(idle, {1: (0.2, 0.0), 2: (0.5, 0.1)}, looks=False) == pytest.approx(1.0)
    assert hybrid(none, sure).accept == sure.accept
    assert hybrid(sure, none).accept == sure.accept


def test_a_timed_gain_tells_what_was_accepted_meanwhile() -> None:
    plain = Decoded(2.0, rounds=0, accepted=0)
    found = [Pair("code", plain, Decoded(1.0, 10, 15)), Pair("code", plain, Decoded(1.5, 30, 5))]
    told = gain(found)
    assert (told.gain, told.a, told.pairs) == (1.6, 1.5, 2)
    assert (told.low, told.high) == (1.3333, 2.0)  # twice the second, twice the first
    assert gain([Pair("chat", plain, plain)]).a is None


def test_a_standalone_draft_is_exported_whole(corpus: Corpus, target: LoadedModel, tmp_path: Path) -> None:
    trainer = Trainer(target, [corpus], tmp_path, replace(SETTINGS, kind="standalone", epochs=1))
    trainer.run(lambda _: None, judge_every=2)
    path = tmp_path / "draft.safetensors"
    assert path.stat().st_size < 60_000  # two bytes a weight of one layer; neither embedding nor output matrix
    standalone.export(path, target, tmp_path / "model")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    draft = replace(target, model=model, name="draft")
    greedy = cut_off(corpus)
    assert len(greedy) > 3
    expected = walk([DraftJudge(draft, target, 3).chances(text) for text in greedy], 3, random.Random(0))
    asked = [
        request(str(at), text.tokens[: text.entry.prompt].tolist(), method="draft_model", k=3, max_tokens=20)
        for at, text in enumerate(greedy)
    ]
    own = [one.metrics.speculative_decoding for one in run(make_core(target, draft, prefill_chunk=256), asked).values()]
    assert expected.rounds == sum(one.num_spec_steps for one in own)
    other = random_model("llama", hidden_size=64, head_dim=16)
    with pytest.raises(DistillError, match="do not fit"):
        standalone.read_standalone(path, other)


def test_what_cannot_be_used_is_named(tmp_path: Path, target: LoadedModel, corpus: Corpus) -> None:
    with pytest.raises(DistillError, match="expected data of `breakeven distill generate`"):
        Corpus(tmp_path)
    (tmp_path / "corpus.json").write_text("{}")
    with pytest.raises(DistillError, match="not a file of this command"):
        Corpus(tmp_path)
    empty = Corpus(tmp_path / "empty", recipe_of(target, max_tokens=20, seed=1))
    with pytest.raises(DistillError, match="no train texts yet"):
        Trainer(target, [empty], tmp_path, SETTINGS)
    empty.add([replace(text, entry=replace_entry(text.entry, temperature=0.8)) for text in texts_of(corpus)])
    with pytest.raises(DistillError, match="no greedy answers to choose"):
        Trainer(target, [empty], tmp_path, SETTINGS)
    older = Corpus(tmp_path / "older", recipe_of(target, max_tokens=20, seed=1))
    splits = {"train": "train", "choose": "held-out"}  # before weights were chosen by texts of their own
    older.add([replace(one, entry=replace_entry(one.entry, split=splits[one.entry.split])) for one in texts_of(corpus)])
    with pytest.raises(DistillError, match=r"no choose texts yet: .* more prompts or a new --work"):
        Trainer(target, [older], tmp_path, SETTINGS)
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(DistillError, match="not a standalone draft"):
        standalone.read_standalone(tmp_path / "x.safetensors", target)
