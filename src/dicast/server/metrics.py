"""Prometheus metrics of one server. Knows what happened, not why; every server has a registry of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from dicast.server.models import ModelRegistry

CONTENT_TYPE = CONTENT_TYPE_LATEST
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the latency buckets, in seconds: an embedded model answers in milliseconds, a large one in seconds."""


class Metrics:
    """Counters of one server, and gauges read when somebody scrapes."""

    def __init__(self, models: ModelRegistry) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_ModelGauges(models))
        self._requests = self._counter("dicast_requests", "Requests by route and status", "route", "status")
        self._refused = self._counter("dicast_refused_requests", "Requests refused before any work", "reason")
        self._tokens = self._counter("dicast_input_tokens", "Tokens read", "model", "key")
        self._cached = self._counter("dicast_cached_tokens", "Tokens read that came from a cache", "model")
        self._questions = self._counter("dicast_questions", "Questions answered", "model", "type")
        self._in_flight = Gauge("dicast_in_flight_requests", "Requests being served", registry=self._registry)
        self._seconds = Histogram(
            "dicast_request_seconds", "Time per request", ("route",), buckets=BUCKETS, registry=self._registry
        )

    def began(self) -> None:
        """A request arrived."""
        self._in_flight.inc()

    def ended(self, route: str, status: int, seconds: float) -> None:
        """A request has been answered or given up."""
        self._in_flight.dec()
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def refused(self, reason: str) -> None:
        """A request was refused before any work."""
        self._refused.labels(reason).inc()

    def answered(self, model: str, key: str, kinds: Iterable[str], tokens: int, cached: int) -> None:
        """A record was answered."""
        self._tokens.labels(model, key).inc(tokens)
        self._cached.labels(model).inc(cached)
        for kind in kinds:
            self._questions.labels(model, kind).inc()

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self._registry)


class _ModelGauges(Collector):
    """What the models say of themselves."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Gauges at this moment."""
        ready = GaugeMetricFamily("dicast_ready", "Whether the default model is loaded and warm")
        ready.add_metric((), float(self._models.ready))
        weights = GaugeMetricFamily("dicast_model_weight_bytes", "Bytes of weights of loaded models", labels=("model",))
        gauges: dict[str, GaugeMetricFamily] = {}
        for model in self._models.loaded:
            weights.add_metric((model.name,), model.size)
            for name, value in asdict(model.engine.stats()).items():
                text = f"Engine: {name.replace('_', ' ')}"
                family = gauges.setdefault(name, GaugeMetricFamily(f"dicast_engine_{name}", text, labels=("model",)))
                family.add_metric((model.name,), value)
        return [ready, weights, *gauges.values()]
