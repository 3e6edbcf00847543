"""The versioned file that holds everything the classifier knows.

Read by `Classifier.load`, written by `breakeven classifier train`. An uncompressed
.npz of plain arrays (never pickles) and one JSON header. `hash` covers the header and all arrays.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classify.features import CUES, DENSE, LIMIT, TABLES, Featurizer
from gateway.classify.lanes import LARGEST
from gateway.classify.taxonomy import Taxonomy, check_taxonomy
from gateway.classify.tokens import PLANE, Folds, Tokenizer
from gateway.classify.vocabulary import ARRAYS, Vocabulary
from gateway.errors import ArtefactError

FORMAT: Final = 2
DEFAULT: Final = Path(__file__).with_name("default.npz")
MAX_BYTES: Final = 5 * 1024 * 1024
STEP: Final = 256
"""Weights of the text model are whole multiples of 1 / STEP."""
ONE: Final = STEP * 1024
"""A score of 1, in the units of the sums."""
MOST_INPUT: Final = 8.0
"""No dense input is larger: they are logarithms of counts, or shares."""


class Header(msgspec.Struct):
    """What the arrays mean."""

    version: str
    """Chosen when training; shown by `inspect` and named by policies through the file."""
    taxonomy: Taxonomy
    temperature: float
    format: int = FORMAT
    cues: tuple[str, ...] = CUES
    training: dict[str, Any] = {}
    """Rows, families, seed and held-out figures of the training run."""


class Artefact(msgspec.Struct):
    """A trained classifier. Weight arrays are (rows, tasks)."""

    header: Header
    rows: npt.NDArray[np.int32]
    """Which rows of the featurizer's tables have weights."""
    weights: npt.NDArray[np.int16]
    """These weights, in units of 1 / STEP."""
    dense: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    folds: Folds
    vocabulary: Vocabulary
    hash: str = ""

    def largest(self) -> float:
        """Return a bound on a score, whatever the prompt: regions and numbers at their largest, all pairs at once."""
        text = np.abs(self.weights.astype(np.float64)).max(initial=0) / STEP * math.sqrt(LIMIT) * TABLES
        return float(text + np.abs(self.bias).max() + MOST_INPUT * np.abs(self.dense).sum(axis=0).max())

    def featurizer(self) -> Featurizer:
        """Return what computes this classifier's inputs."""
        return Featurizer(Tokenizer(self.folds), self.vocabulary)


def _arrays(artefact: Artefact) -> dict[str, npt.NDArray[Any]]:
    return {
        "rows": artefact.rows,
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
    _check_sums(path, artefact)
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
        raise ArtefactError(f"{path}: not a classifier artefact: {error}") from error
    if header.format != FORMAT or header.cues != CUES:
        raise ArtefactError(f"{path}: made for another version; run `breakeven classifier train` again")
    tasks = len(check_taxonomy(header.taxonomy, str(path)).tasks)
    _check_shapes(path, raw, tasks)
    if _digest(header_bytes, raw) != digest:
        raise ArtefactError(f"{path}: hash mismatch: the file is damaged or was edited")
    try:
        vocabulary = Vocabulary.of(raw)
    except (ValueError, TypeError) as error:
        raise ArtefactError(f"{path}: {error}") from error
    arrays = (raw["rows"], raw["weights"], raw["dense"], raw["bias"], raw["folds"])
    artefact = Artefact(header, *arrays, vocabulary, digest)
    _check_sums(path, artefact)
    rows, end = artefact.rows, artefact.featurizer().offsets[-1]
    if len(rows) and (rows[0] < 0 or rows[-1] >= end or np.diff(rows).min(initial=1) < 1):
        raise ArtefactError(f"{path}: rows: expected increasing numbers below {end}")
    return artefact


def _check_sums(path: Path, artefact: Artefact) -> None:
    if not artefact.largest() * ONE < LARGEST:
        raise ArtefactError(f"{path}: weights: too large to be summed; expected scores below {LARGEST // ONE}")


def _check_shapes(path: Path, raw: dict[str, npt.NDArray[Any]], tasks: int) -> None:
    weighted = len(raw["rows"]) if "rows" in raw and raw["rows"].ndim else 0
    expected: dict[str, tuple[int, ...]] = {
        "rows": (weighted,),
        "weights": (weighted, tasks),
        "dense": (DENSE, tasks),
        "bias": (tasks,),
        "folds": (PLANE,),
    }
    for name, shape in expected.items():
        if name not in raw or raw[name].shape != shape:
            found = raw[name].shape if name in raw else None
            raise ArtefactError(f"{path}: {name}: expected shape {shape}, found {found}")
    if raw.keys() != {*expected, *ARRAYS}:
        raise ArtefactError(f"{path}: unexpected arrays: {', '.join(sorted(raw))}")
