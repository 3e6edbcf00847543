"""The demo's prompts: eight tasks, six each, none declared to the gateway."""

from __future__ import annotations

from collections import Counter

from cli.demo.workload import interleave, load_prompts
from gateway.types import DEFAULT_TASKS


def test_six_prompts_for_each_default_task_with_unique_ids():
    prompts = load_prompts()
    assert Counter(p.task for p in prompts) == dict.fromkeys(DEFAULT_TASKS, 6)
    assert len({p.id for p in prompts}) == len(prompts)
    assert len({p.messages[-1]["content"] for p in prompts}) == len(prompts)


def test_a_run_that_is_cut_short_has_seen_all_tasks_alike():
    order = interleave(load_prompts(), 6)
    assert len(order) == 48
    for turn in range(6):
        assert Counter(p.task for p in order[8 * turn : 8 * turn + 8]) == dict.fromkeys(DEFAULT_TASKS, 1)
    assert len(interleave(load_prompts(), 2)) == 16


def test_body_is_streamed_with_usage_and_leaves_out_what_was_not_set():
    prompt = next(p for p in load_prompts() if p.seed is None and p.response_format is None)
    body = prompt.body("m", 48)
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_tokens"] == 48
    assert "seed" not in body
    assert "response_format" not in body
    seeded = next(p for p in load_prompts() if p.seed is not None)
    assert seeded.body("m", 8)["seed"] == seeded.seed
