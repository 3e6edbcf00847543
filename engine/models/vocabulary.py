"""Whether a draft model speaks the target's tokens. Used by `load.py` and by tests; free of torch."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import TokenizerMismatchError


def check_same_tokens(
    target: Mapping[str, int],
    draft: Mapping[str, int],
    *,
    names: tuple[str, str],
    padding: frozenset[str] = frozenset(),
) -> None:
    """Compare two vocabularies (token string → id) id by id.

    Sizes may differ only by padding: tokens in `padding`, at ids that the other vocabulary does not use. Raises
    TokenizerMismatchError with the first difference and their number.
    """
    by_id = [{index: token for token, index in vocabulary.items()} for vocabulary in (target, draft)]
    wrong = [
        index
        for index in sorted(by_id[0].keys() | by_id[1].keys())
        if by_id[0].get(index) != by_id[1].get(index)
        and not (_absent(index, by_id) and (by_id[0].get(index) or by_id[1].get(index)) in padding)
    ]
    if not wrong:
        return
    first = wrong[0]
    here, there = (repr(tokens[first]) if first in tokens else "nothing" for tokens in by_id)
    raise TokenizerMismatchError(
        f"the draft model {names[1]} does not share the tokenizer of {names[0]}: token {first} is {here} in the target "
        f"and {there} in the draft ({len(wrong)} of {len(by_id[0])} differ); choose a draft of the same family"
    )


def _absent(index: int, by_id: list[dict[int, str]]) -> bool:
    return any(index not in tokens for tokens in by_id)
