"""Gauges of Prometheus. What is unknown is absent, never 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily


def gauge(name: str, text: str, known: float | None) -> Iterator[GaugeMetricFamily]:
    if known is not None:
        yield GaugeMetricFamily(name, text, value=known)


def labelled(name: str, text: str, label: str, values: Mapping[str, float | None]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for one, known in values.items():
        if known is not None:
            family.add_metric([one], known)
    return family


def one_hot(name: str, text: str, label: str, values: tuple[str, ...], current: str | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for one in values:
        family.add_metric([one], 1 if one == current else 0)
    return family
