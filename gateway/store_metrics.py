"""Gauges of the stores and of what waits for them, from what `/readyz` tells of them. Called by `gateway.metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def store_metrics(states: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the gauges; `states` is `Parts.store_states()`: names are ours, so that labels stay few."""
    up = GaugeMetricFamily("breakeven_store_up", "1 where the store answers", labels=["store"])
    age = GaugeMetricFamily("breakeven_store_age_seconds", "Since the store last answered", labels=["store"])
    for name, said in states.items():
        if not isinstance(said, Mapping):
            continue
        if "submitted" in said:
            yield from _recorder(said)
        elif "ok" in said:
            up.add_metric([name], float(bool(said["ok"])))
            if isinstance(said.get("age_s"), int | float):
                age.add_metric([name], float(said["age_s"]))
    yield from (up, age)


def _recorder(said: Mapping[str, Any]) -> Iterator[Metric]:
    yield GaugeMetricFamily("breakeven_recorder_queued", "Records in memory", value=said.get("queued", 0))
    yield GaugeMetricFamily(
        "breakeven_spool_bytes", "Records on disk that a store has yet to take", value=said.get("spooled_bytes", 0)
    )
    lost = CounterMetricFamily("breakeven_records_lost", "Records that could not be kept, once for each store")
    lost.add_metric([], said.get("dropped", 0) + _lost(said))
    yield lost


def _lost(said: Mapping[str, Any]) -> int:
    """Return the records that a store has missed for good: pushed out of the spool, or refused for what they are."""
    return sum(sink.get("lost", 0) + sink.get("refused", 0) for sink in said.get("sinks", ()))
