"""The latency histogram against exact computations and scipy's binomial distribution."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gateway.histogram import (
    LAST_BUCKET,
    LogHistogram,
    _most_below,
    bucket_of,
    lower_edge,
    middle,
    needed_n,
    upper_edge,
)

latencies = st.floats(min_value=2e-6, max_value=1e5)
samples = st.lists(latencies, min_size=1, max_size=200)


@given(latencies)
def test_a_value_lies_in_its_bucket_and_within_one_percent_of_the_middle(value):
    index = bucket_of(value)
    assert lower_edge(index) * (1 - 1e-9) < value <= upper_edge(index) * (1 + 1e-9)
    assert abs(middle(index) / value - 1) < 0.01


def test_extremes_are_counted_at_the_ends():
    assert bucket_of(0.0) == 0
    assert bucket_of(1e300) == LAST_BUCKET


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_latencies_are_refused(value):
    with pytest.raises(ValueError, match="finite number of seconds"):
        LogHistogram().add(value)


@given(samples, st.floats(min_value=0.01, max_value=0.99))
def test_quantile_is_within_one_percent_of_the_order_statistic(values, q):
    exact = sorted(values)[max(1, math.ceil(q * len(values) - 1e-9)) - 1]
    assert LogHistogram.of(values).quantile(q) == pytest.approx(exact, rel=0.01)


@given(samples, samples)
def test_merge_equals_the_histogram_of_both_samples(left, right):
    merged = LogHistogram.of(left)
    merged.merge(LogHistogram.of(right))
    assert merged == LogHistogram.of(left + right)
    assert merged.count == len(left) + len(right)


@given(st.dictionaries(st.integers(0, LAST_BUCKET), st.integers(1, 2**50)))
def test_packed_form_round_trips(counts):
    histogram = LogHistogram(counts)
    assert LogHistogram.decode(histogram.encode()) == histogram


@given(st.lists(st.lists(latencies, max_size=30), max_size=12))
def test_merging_packed_rows_equals_merging_one_by_one(rows):
    expected = LogHistogram.of(value for row in rows for value in row)
    assert LogHistogram.merge_encoded(LogHistogram.of(row).encode() for row in rows) == expected


@given(st.binary(max_size=40))
def test_damaged_bytes_give_a_histogram_or_a_value_error(packed):
    try:
        histogram = LogHistogram.decode(packed)
    except ValueError:
        return
    assert LogHistogram.decode(histogram.encode()) == histogram


@settings(max_examples=300)
@given(
    st.integers(1, 20_000), st.sampled_from([0.01, 0.05, 0.5, 0.95, 0.99, 0.999]), st.sampled_from([0.05, 0.01, 0.1])
)
def test_binomial_search_agrees_with_scipy(n, p, alpha):
    j = _most_below(n, p, alpha)
    assert j < 0 or stats.binom.cdf(j, n, p) <= alpha * (1 + 1e-7)
    assert stats.binom.cdf(j + 1, n, p) > alpha * (1 - 1e-7)


def test_p99_bound_needs_299_values():
    assert needed_n(0.99, 0.95) == 299
    assert LogHistogram.of([0.01] * 298).upper_bound(0.99) is None
    assert LogHistogram.of([0.01] * 299).upper_bound(0.99) == pytest.approx(0.01, rel=0.02)


def test_small_samples_have_no_bound():
    assert LogHistogram().upper_bound(0.5) is None
    assert LogHistogram().lower_bound(0.5) is None
    assert LogHistogram().quantile(0.5) is None


@pytest.mark.parametrize("q", [0.5, 0.99])
def test_bounds_cover_the_true_quantile_at_least_as_often_as_they_say(q):
    """2,000 samples; a covering rate below 93.5 % at a true 95 % would be 3 standard deviations off."""
    rng = np.random.default_rng(7)
    true, upper, lower = float(stats.lognorm.ppf(q, 1.0)), 0, 0
    for _ in range(2000):
        histogram = LogHistogram.of(rng.lognormal(0.0, 1.0, 400).tolist())
        upper += (histogram.upper_bound(q) or 0.0) >= true
        lower += (histogram.lower_bound(q) or math.inf) <= true
    assert upper / 2000 > 0.935
    assert lower / 2000 > 0.935


@given(samples, latencies)
def test_count_above_counts_whole_buckets(values, limit):
    expected = sum(bucket_of(value) > bucket_of(limit) for value in values)
    assert LogHistogram.of(values).count_above(limit) == expected
