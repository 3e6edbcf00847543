"""The versioned file that holds everything the classifier knows.

Read by `Classifier.load`, written by `breakeven classifier train`. An uncompressed
.npz of plain arrays (never pickles) and one JSON header. `hash` covers the header and all arrays.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classify.features import CUES, DENSE, REGIONS, TURN, Cues, Featurizer, Weights
from gateway.classify.taxonomy import Taxonomy, check_taxonomy
from gateway.classify.tokens import Folds, Tokenizer
from gateway.classify.vocabulary import Vocabulary
from gateway.classify.window import PLANE
from gateway.errors import ArtefactError

FORMAT: Final = 3
DEFAULT: Final = Path(__file__).with_name("default.npz")
MAX_BYTES: Final = 5 * 1024 * 1024


class Header(msgspec.Struct):
    """What the arrays mean."""

    version: str
    """Chosen when training; shown by `inspect` and named by policies through the file."""
    taxonomy: Taxonomy
    temperature: float
    step: float = 0.0
    """Weights of the text model are whole multiples of it. 0: made by an older version, which had none."""
    format: int = FORMAT
    cues: tuple[str, ...] = CUES
    training: dict[str, Any] = {}
    """Rows, families, seed and held-out figures of the training run."""


class Artefact(msgspec.Struct):
    """A trained classifier."""

    header: Header
    vocabulary: Vocabulary
    cues: Cues
    """By place: the cue class plus one, or 0."""
    weights: Weights
    """By place: each region's weights for each task, region by region, in units of the header's step."""
    dense: npt.NDArray[np.float32]
    """(dense inputs, tasks)"""
    bias: npt.NDArray[np.float32]
    folds: Folds
    hash: str = ""

    def featurizer(self) -> Featurizer:
        """Return what computes this classifier's inputs, and the sums of the last turn's weights on the way."""
        turn = self.weights[:, : TURN * len(self.bias)]
        return Featurizer(Tokenizer(self.folds), self.vocabulary, self.cues, turn)


def _arrays(artefact: Artefact) -> dict[str, npt.NDArray[Any]]:
    return {
        "cues": artefact.cues,
        "weights": artefact.weights,
        "dense": artefact.dense,
        "bias": artefact.bias,
        "folds": artefact.folds,
        **artefact.vocabulary.arrays(),
    }


def _digest(header: bytes, arrays: dict[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256(header)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def save_artefact(artefact: Artefact, path: Path) -> str:
    """Write `artefact` and return its hash. Raises ArtefactError if it is too large, or not writable."""
    header = msgspec.json.encode(artefact.header)
    arrays = _arrays(artefact)
    size = sum(array.nbytes for array in arrays.values())
    if size > MAX_BYTES - 16_384:
        raise ArtefactError(f"{path}: {size} bytes; an artefact may have {MAX_BYTES}: use fewer tasks or prompts")
    digest = _digest(header, arrays)
    try:
        with path.open("wb") as file:
            np.savez(file, header=np.frombuffer(header, dtype=np.uint8), hash=np.array(digest), **arrays)  # type: ignore[arg-type]  # savez's stub has a bool option among the keywords
    except OSError as error:
        raise ArtefactError(f"{path}: {error}") from error
    return digest


def load_artefact(path: Path) -> Artefact:
    """Read and verify an artefact. Raises ArtefactError saying what is wrong with the file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            raw = {name: file[name] for name in file.files}
        header_bytes, digest = raw.pop("header").tobytes(), str(raw.pop("hash"))
        header = msgspec.json.decode(header_bytes, type=Header)
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, msgspec.MsgspecError) as error:
        expected = "expected a file that `breakeven classifier train` wrote"
        raise ArtefactError(f"{path}: not a classifier artefact; {expected}") from error
    if header.format != FORMAT or header.cues != CUES or not header.step:
        raise ArtefactError(f"{path}: made for another version; run `breakeven classifier train` again")
    tasks = len(check_taxonomy(header.taxonomy, str(path)).tasks)
    _check_shapes(path, raw, tasks)
    if _digest(header_bytes, raw) != digest:
        raise ArtefactError(f"{path}: hash mismatch: the file is damaged or was edited")
    vocabulary = Vocabulary(raw["keys"], raw["shifts"])
    arrays = (vocabulary, raw["cues"], raw["weights"], raw["dense"], raw["bias"], raw["folds"])
    return Artefact(header, *arrays, digest)


def _check_shapes(path: Path, raw: dict[str, npt.NDArray[Any]], tasks: int) -> None:
    places, buckets = (raw[name].shape[:1] if name in raw else () for name in ("keys", "shifts"))
    expected: dict[str, tuple[tuple[int, ...], type[Any]]] = {
        "keys": (places, np.int64),
        "shifts": (buckets, np.uint16),
        "cues": (places, np.uint8),
        "weights": ((*places, REGIONS * tasks), np.int8),
        "dense": ((DENSE, tasks), np.float32),
        "bias": ((tasks,), np.float32),
        "folds": ((PLANE,), np.uint16),
    }
    for name, (shape, kind) in expected.items():
        if name not in raw or raw[name].shape != shape or raw[name].dtype != kind:
            found = f"{raw[name].dtype} {raw[name].shape}" if name in raw else "none"
            raise ArtefactError(f"{path}: {name}: expected {np.dtype(kind)} {shape}, found {found}")
    if not all(len(sizes) == 1 and sizes[0] > 1 and sizes[0] & (sizes[0] - 1) == 0 for sizes in (places, buckets)):
        raise ArtefactError(f"{path}: keys, shifts: expected powers of two")
    if not (np.isfinite(raw["dense"]).all() and np.isfinite(raw["bias"]).all()):
        raise ArtefactError(f"{path}: dense, bias: expected finite numbers")
    if raw.keys() != expected.keys():
        raise ArtefactError(f"{path}: unexpected arrays: {', '.join(sorted(raw))}")
