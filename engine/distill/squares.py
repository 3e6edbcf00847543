"""Linear least squares with a ridge, from sums that texts are added to one by one. Called by the head's start."""

from __future__ import annotations

import torch


class LeastSquares:
    """Sums over positions for `wanted ≈ given · Wᵀ`."""

    def __init__(self, size: int, width: int) -> None:
        """`size` is the width of what is given, `width` that of what is wanted."""
        self.gram = torch.zeros(size, size)
        self.cross = torch.zeros(size, width)

    def add(self, given: torch.Tensor, wanted: torch.Tensor) -> None:
        """Take in positions: given [positions, size], wanted [positions, width]."""
        self.gram.addmm_(given.T, given)
        self.cross.addmm_(given.T, wanted)

    def part(self, columns: slice) -> LeastSquares:
        """The same problem with some of the given columns only."""
        found = LeastSquares(0, 0)
        found.gram, found.cross = self.gram[columns, columns], self.cross[columns]
        return found

    def less(self, columns: slice, weight: torch.Tensor) -> LeastSquares:
        """The problem of what is left when `columns` already explain given[columns] · weightᵀ."""
        found = LeastSquares(0, 0)
        found.gram, found.cross = self.gram, self.cross - self.gram[:, columns] @ weight.T
        return found

    def solve(self, ridge: float) -> torch.Tensor:
        """Return W [width, size]; `ridge` is in parts of the mean of the gram's diagonal."""
        gram = self.gram.clone()
        gram.diagonal().add_(ridge * float(gram.diagonal().mean()) + 1e-6)
        solved: torch.Tensor = torch.linalg.solve(gram, self.cross)
        return solved.T.contiguous()
