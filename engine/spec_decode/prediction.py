"""OpenAI's Predicted Outputs: the request brings the text that it expects. Tried before the request's own method."""

from __future__ import annotations

from engine.sampler import Draft
from engine.sequence import Sequence
from engine.spec_decode.ngram import MAX_N, NgramIndex


class PredictionFollower:
    """Follows the output through the predicted text and finds its place again after a difference."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[NgramIndex, int, int]] = {}
        """Per request: index of the prediction, expected position in it, output tokens seen."""

    def propose(self, sequence: Sequence, k: int) -> Draft:
        """Return at most k predicted tokens; empty where the output has left the prediction."""
        predicted = sequence.request.prediction_ids
        if not predicted or k < 1:
            return Draft([])
        index, place, seen = self._places.get(sequence.request_id) or (_indexed(predicted), 0, 0)
        place = self._follow(index, predicted, place, sequence.tokens[sequence.num_prompt + seen :], sequence)
        self._places[sequence.request_id] = (index, place, sequence.num_output)
        return Draft(predicted[place : place + k], predicted=True) if place >= 0 else Draft([])

    @staticmethod
    def _follow(index: NgramIndex, predicted: list[int], place: int, new: list[int], sequence: Sequence) -> int:
        """Advance over the new output tokens; -1 where the place in the prediction is lost."""
        for token in new:
            place = place + 1 if 0 <= place < len(predicted) and predicted[place] == token else -1
        if place < 0 and sequence.num_output:
            found = index.find(sequence.tokens[-min(MAX_N, sequence.num_output) :])
            place = -1 if found is None else found
        return place

    def release(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._places.pop(request_id, None)


def _indexed(predicted: list[int]) -> NgramIndex:
    index = NgramIndex()
    index.extend([*predicted, -1])
    return index
