"""Metrics as Prometheus' text format, version 0.0.4. A quiet file: from the dict of `metrics()` to text, nothing else.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/. One block a metric: HELP, TYPE, then a line
for each set of labels. The buckets of a histogram are counted from the smallest on, and `le="+Inf"` has all of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_PREFIX = "fanwise_rpc_"

Values = Mapping[str, Any]  # Any: numbers, texts, mappings of these


class _Metric(NamedTuple):
    key: str
    name: str
    kind: str
    help: str


_OF_WORKER = (
    _Metric("workers", "workers", "gauge", "Workers in the group, this one included."),
    _Metric("workers_joined", "workers_joined_total", "counter", "Workers that have joined the group since."),
    _Metric("workers_left", "workers_left_total", "counter", "Workers that have left the group on their own."),
    _Metric("workers_lost", "workers_lost_total", "counter", "Workers that were declared lost."),
    _Metric("calls_running", "calls_running", "gauge", "Functions that run here for others and do not wait."),
    _Metric("calls_waiting", "calls_waiting", "gauge", "Calls that are here and have not begun."),
    _Metric("actor_calls_waiting", "actor_calls_waiting", "gauge", "Calls that wait for their turn at an actor."),
    _Metric("answers_waiting", "answers_waiting", "gauge", "Answers and callbacks that have not begun."),
)
_OF_PEER = (
    _Metric("calls_made", "calls_made_total", "counter", "Calls of functions that were sent to the peer."),
    _Metric("calls_received", "calls_received_total", "counter", "Calls of functions that came from the peer."),
    _Metric("calls_timed_out", "calls_timed_out_total", "counter", "Calls whose time was over before the answer came."),
    _Metric("calls_failed", "calls_failed_total", "counter", "Calls of the peer that were answered with an error."),
    _Metric("bytes_sent", "sent_bytes_total", "counter", "Bytes sent to the peer, shared memory included."),
    _Metric("bytes_received", "received_bytes_total", "counter", "Bytes that came from it, shared memory included."),
    _Metric("calls_open", "calls_open", "gauge", "Calls that were made and are not answered yet."),
    _Metric("calls_waiting_for_link", "calls_waiting_for_link", "gauge", "Calls that wait until there is a link."),
    _Metric("calls_waiting_for_room", "calls_waiting_for_room", "gauge", "Calls that wait until fewer wait there."),
    _Metric("bytes_to_send", "bytes_to_send", "gauge", "Bytes that the peer's socket does not take yet."),
    _Metric("bytes_not_begun", "bytes_not_begun", "gauge", "Bytes of the peer's calls that wait here to be begun."),
)
_REFUSED = _Metric("refused", "refused_total", "counter", "What was not done for the peer, or with it, by reason.")
_LATENCY = _Metric("latency_s", "latency_seconds", "histogram", "How long calls took until their answers were here.")


def text_of(metrics: Values) -> str:
    """The text of what `metrics()` returns."""
    return "".join(f"{line}\n" for line in _lines(metrics))


def _lines(metrics: Values) -> Iterator[str]:
    mine = {"worker": metrics["worker"]}
    peers = [({**mine, "peer": name}, values) for name, values in metrics["peers"].items()]
    for metric in _OF_WORKER:
        yield from _head(metric)
        yield _sample(metric.name, mine, metrics[metric.key])
    for metric in _OF_PEER:
        yield from _head(metric)
        for labels, values in peers:
            yield _sample(metric.name, labels, values[metric.key])
    yield from _head(_REFUSED)
    for labels, values in peers:
        for why, number in values[_REFUSED.key].items():
            yield _sample(_REFUSED.name, {**labels, "reason": why}, number)
    yield from _head(_LATENCY)
    for labels, values in peers:
        yield from _histogram(labels, values[_LATENCY.key])


def _head(metric: _Metric) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{metric.name} {metric.help}"
    yield f"# TYPE {_PREFIX}{metric.name} {metric.kind}"


def _histogram(labels: Mapping[str, str], histogram: Values) -> Iterator[str]:
    below = 0
    for bound, number in histogram["buckets"].items():
        below += number
        yield _sample(f"{_LATENCY.name}_bucket", {**labels, "le": _number(bound)}, below)
    yield _sample(f"{_LATENCY.name}_sum", labels, histogram["sum"])
    yield _sample(f"{_LATENCY.name}_count", labels, histogram["count"])


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    said = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{_PREFIX}{name}{{{said}}} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return "+Inf" if value == float("inf") else repr(value)
