"""Replays acceptance traces through the live decision's own code. Called by `breakeven simulate` and the benchmarks."""
