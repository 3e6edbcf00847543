"""What `breakeven backends check` says of an arm's statistics."""

from __future__ import annotations

import pytest

from gateway.lossless.compare import Answer
from gateway.lossless.pairs import PairResult, _note_acceptance
from gateway.types import Spec


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (None, "none"),
        (Spec(0, 0, 0, [], decode_s=1.0), "none"),  # its time is all that the server tells
        (Spec(0, 0, 0, [], undrafted=9), "reported"),
        (Spec(3, 12, 4, []), "reported"),
        (Spec(3, 12, 4, [], estimated=True), "estimated"),
        (Spec(0, 12, 4, [], estimated=True), "tokens only"),
    ],
)
def test_acceptance_is_called_what_it_is(spec: Spec | None, said: str) -> None:
    result = PairResult("pool/plain", "pool/eagle-k4")
    _note_acceptance(Answer({}, spec=spec), result)
    assert result.acceptance == said
