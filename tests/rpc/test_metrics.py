"""Metrics: what they say of calls between workers, and that their text is what Prometheus reads."""

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded, WireError
from fanwise.links import LinkCounts
from fanwise.rpc.connections.traffic import GONE_MAX, Traffic
from fanwise.rpc.prometheus import text_of
from fanwise.testing import within
from fanwise.testing.rpc_workers import LIMIT_S, Worker, Workers, all_do, leave

# Any throughout: what users' functions take and return; numbers, texts and dicts of these.

# -- the text ------------------------------------------------------------------------------------------------------

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\n|\\")*"'
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|Inf)|NaN"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL})(?:,{_LABEL})*)\}})? ({_NUMBER})")
_HEAD = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.+)")
_UNESCAPED = {r"\\": "\\", r"\n": "\n", r"\"": '"'}

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]


def parsed(text: str) -> Samples:
    """The samples of a text. Strict: AssertionError for what the format forbids, and what it only advises against."""
    assert text.endswith("\n"), "the last line must end too"
    samples: Samples = {}
    kinds: dict[str, str] = {}
    current, expected = "", "HELP"
    for line in text.splitlines():
        head = _HEAD.fullmatch(line)
        if head is not None:
            what, name, rest = head.groups()
            assert what == expected or (what == "HELP" and expected == "sample"), f"{what} in the wrong place: {line}"
            if what == "HELP":
                assert name not in kinds, f"{name} comes twice"
                current, expected = name, "TYPE"
            else:
                assert name == current and rest in ("counter", "gauge", "histogram"), line
                kinds[name], expected = rest, "sample"
            continue
        assert expected == "sample", f"before its TYPE: {line}"
        sample = _SAMPLE.fullmatch(line)
        assert sample is not None, f"no sample: {line!r}"
        name, labels, number = sample.groups()
        endings = ("_bucket", "_sum", "_count") if kinds[current] == "histogram" else ("",)
        assert name in [current + ending for ending in endings], f"{name} below {current}"
        assert (kinds[current] == "counter") == current.endswith("_total"), current
        found = [label.split("=", 1) for label in re.findall(_LABEL, labels or "")]
        key = tuple((label, re.sub(r"\\.", lambda it: _UNESCAPED[it[0]], text[1:-1])) for label, text in found)
        assert len({label for label, _ in key}) == len(key), f"a label twice: {line}"
        assert (name, key) not in samples, f"twice: {line}"
        samples[name, key] = float(number)
    check_histograms(samples, [name for name, kind in kinds.items() if kind == "histogram"])
    return samples


def check_histograms(samples: Samples, names: list[str]) -> None:
    """Buckets grow, and the last has all."""
    for name in names:
        of = [labels for found, labels in samples if found == f"{name}_count"]
        for labels in of:
            buckets = [
                (float(dict(found)["le"]), number)
                for (bucket, found), number in samples.items()
                if bucket == f"{name}_bucket" and tuple(pair for pair in found if pair[0] != "le") == labels
            ]
            assert buckets == sorted(buckets) and buckets[-1][0] == math.inf, buckets
            assert [number for _, number in buckets] == sorted(number for _, number in buckets)
            assert buckets[-1][1] == samples[f"{name}_count", labels]
            assert (f"{name}_sum", labels) in samples


def of_peer(**numbers: Any) -> dict[str, Any]:
    keys = (
        *("calls_made", "calls_received", "calls_timed_out", "calls_failed", "bytes_sent", "bytes_received"),
        *("calls_open", "calls_waiting_for_link", "calls_waiting_for_room", "bytes_to_send", "bytes_not_begun"),
    )
    latency_s = {"buckets": {0.001: 3, 0.5: 0, math.inf: 2}, "sum": 2.5, "count": 5}
    return {**dict.fromkeys(keys, 0), "refused": {"malformed": 1}, "latency_s": latency_s, **numbers}


def of_worker(peers: Mapping[str, Any]) -> dict[str, Any]:
    keys = "workers", "workers_joined", "workers_left", "workers_lost", "calls_running", "calls_waiting"
    waiting = "actor_calls_waiting", "answers_waiting"
    return {"worker": "me", **dict.fromkeys((*keys, *waiting), 7), "peers": peers}


def test_the_text_has_every_number_once_under_its_labels() -> None:
    samples = parsed(text_of(of_worker({"a": of_peer(calls_made=3), "b": of_peer(bytes_sent=10**18)})))
    me = ("worker", "me")
    assert samples["fanwise_rpc_workers", (me,)] == 7
    assert samples["fanwise_rpc_calls_made_total", (me, ("peer", "a"))] == 3
    assert samples["fanwise_rpc_sent_bytes_total", (me, ("peer", "b"))] == 10**18
    assert samples["fanwise_rpc_refused_total", (me, ("peer", "a"), ("reason", "malformed"))] == 1
    assert samples["fanwise_rpc_latency_seconds_bucket", (me, ("peer", "a"), ("le", "0.001"))] == 3
    assert samples["fanwise_rpc_latency_seconds_bucket", (me, ("peer", "a"), ("le", "0.5"))] == 3
    assert samples["fanwise_rpc_latency_seconds_bucket", (me, ("peer", "a"), ("le", "+Inf"))] == 5
    assert samples["fanwise_rpc_latency_seconds_sum", (me, ("peer", "a"))] == 2.5


def test_names_with_signs_that_mean_something_in_the_text_come_back_as_they_were() -> None:
    name = 'a\\b"c\nd{e="f"}'
    samples = parsed(text_of(of_worker({name: of_peer(calls_made=3)})))
    assert samples["fanwise_rpc_calls_made_total", (("worker", "me"), ("peer", name))] == 3


def test_all_of_the_dict_is_in_the_text() -> None:
    numbers: dict[str, Any] = {
        "refused": {"x": 1001},
        "latency_s": {"buckets": {math.inf: 1002}, "sum": 0.25, "count": 1002},
    }
    plain = {key: 2000 + place for place, key in enumerate(of_peer()) if key not in numbers}
    metrics = of_worker({"a": {**plain, **numbers}})
    metrics |= {key: 3000 + place for place, key in enumerate(metrics) if key not in ("worker", "peers")}
    said = list(parsed(text_of(metrics)).values())
    expected = [1001, 1002, 0.25, *plain.values(), *(value for value in metrics.values() if isinstance(value, int))]
    assert sorted(set(said)) == sorted(expected)


@pytest.mark.parametrize(
    "wrong",
    [
        "fanwise_rpc_x 1\n",
        "# HELP a_total x\n# TYPE a_total counter\na_total 1",
        "# HELP a_total x\n# TYPE a_total counter\na_total{b=c} 1\n",
        '# HELP a_total x\n# TYPE a_total counter\na_total{b="c"d"} 1\n',
        '# HELP a_total x\n# TYPE a_total counter\na_total{b="c"} 1\na_total{b="c"} 2\n',
        "# HELP a x\n# TYPE a counter\na 1\n",
        "# HELP a x\n# TYPE a gauge\nb 1\n",
        '# HELP a x\n# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_sum 1\na_count 1\n',
    ],
)
def test_a_text_that_is_none_is_found(wrong: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        parsed(wrong)


# -- traffic -------------------------------------------------------------------------------------------------------


def test_of_workers_that_are_gone_the_newest_are_remembered() -> None:
    traffic = Traffic()
    for number in range(GONE_MAX + 10):
        traffic.refused(f"w{number}", "not_welcome")
    assert "w9" not in traffic.by_worker() and "w10" in traffic.by_worker()
    traffic.refused("w10", "not_welcome")
    traffic.refused("one more", "not_welcome")
    known = traffic.by_worker()
    assert len(known) == GONE_MAX and "w11" not in known
    assert known["w10"][0] == LinkCounts(refused={"not_welcome": 2})


# -- real workers --------------------------------------------------------------------------------------------------


def wait_for_ever() -> None:
    torch.futures.Future[None]().wait()


def fail() -> None:
    raise ValueError("as asked")


def call(to: str, function: Any, *args: object, times: int = 1, timeout_s: float = LIMIT_S) -> Any:
    for _ in range(times):
        value = rpc.rpc_sync(to, function, args, timeout=timeout_s)
    return value


def call_many(to: str, times: int) -> None:
    torch.futures.wait_all([rpc.rpc_async(to, max, (1, 2)) for _ in range(times)])


def peer(name: str) -> dict[str, Any]:
    return dict(rpc.metrics()["peers"][name])


def text() -> str:
    return rpc.metrics_text()


def mine() -> dict[str, Any]:
    return {key: value for key, value in rpc.metrics().items() if key != "peers"}


def peers() -> list[str]:
    return list(rpc.metrics()["peers"])


def end() -> None:
    rpc.shutdown(graceful=False)


def agree(one: Worker, other: Worker) -> None:
    """What one has sent the other has."""

    def both() -> bool:
        there, back = one.do(peer, other.name), other.do(peer, one.name)
        bytes_agree = (there["bytes_sent"], there["bytes_received"]) == (back["bytes_received"], back["bytes_sent"])
        return bytes_agree and there["calls_made"] == back["calls_received"]

    within(LIMIT_S, both, "both say the same")


def test_two_workers_say_the_same_of_their_calls(real_workers: Workers) -> None:
    w0, w1 = real_workers.group(2)
    w0.do(call, "w1", max, 1, 2, times=30)
    w0.do(call_many, "w1", 20)
    w1.do(call, "w0", max, 1, 2, times=5)
    w0.do(call, "w0", max, 1, 2, times=7)
    with pytest.raises(ValueError, match="as asked"):
        w0.do(call, "w1", fail)
    agree(w0, w1)
    agree(w1, w0)
    seen = w0.do(peer, "w1")
    assert (seen["calls_made"], seen["calls_received"], seen["calls_open"]) == (51, 5, 0)
    assert w1.do(peer, "w0")["calls_failed"] == 1
    assert seen["latency_s"]["count"] == sum(seen["latency_s"]["buckets"].values()) == 51
    to_itself = w0.do(peer, "w0")
    assert (to_itself["calls_made"], to_itself["calls_received"]) == (7, 7)
    samples = parsed(w0.do(text))
    assert samples["fanwise_rpc_calls_made_total", (("worker", "w0"), ("peer", "w1"))] == 51
    assert w0.do(mine) == {
        "worker": "w0",
        "workers": 2,
        "workers_joined": 0,
        "workers_left": 0,
        "workers_lost": 0,
        "calls_running": 0,
        "calls_waiting": 0,
        "actor_calls_waiting": 0,
        "answers_waiting": 0,
    }
    all_do([w0, w1], leave)


def test_a_tensor_counts_with_all_its_bytes_also_when_it_goes_by_shared_memory(real_workers: Workers) -> None:
    w0, w1 = real_workers.group(2)
    for _ in range(3):
        w0.do(call, "w1", torch.sum, torch.zeros(1 << 20))
    agree(w0, w1)
    assert 12 << 20 < w0.do(peer, "w1")["bytes_sent"] < 13 << 20
    all_do([w0, w1], leave)


def test_what_is_late_open_or_refused_is_seen(real_workers: Workers) -> None:
    w0 = real_workers.begin(0, 2)
    w1 = real_workers.begin(1, 2, allow=[wait_for_ever, "builtins.max"], num_worker_threads=1)
    for worker in (w0, w1):
        worker.result()
    w0.do(call, "w1", max, 1, 2)  # a call that waits for its link until its time is over is never sent
    with pytest.raises(DeadlineExceeded):
        w0.do(call, "w1", wait_for_ever, timeout_s=0.05)
    with pytest.raises(WireError, match="allow-list"):
        w0.do(call, "w1", fail)
    seen = w0.do(peer, "w1")
    assert (seen["calls_made"], seen["calls_timed_out"], seen["latency_s"]["count"]) == (3, 1, 2)
    there = w1.do(peer, "w0")
    assert (there["calls_received"], there["calls_failed"], there["refused"]["not_allowed"]) == (3, 1, 1)
    for worker in (w0, w1):
        worker.do(end)


def test_the_numbers_of_a_worker_go_on_when_it_dies_and_comes_back(real_workers: Workers) -> None:
    w0, w1 = real_workers.group(2, dynamic=True)
    w0.do(call, "w1", max, 1, 2, times=10)
    w1.kill()
    within(LIMIT_S, lambda: w0.do(mine)["workers_lost"] == 1, "its loss is counted")
    before = w0.do(peer, "w1")
    assert before["calls_made"] == 10 and before["latency_s"]["count"] == 10
    again = real_workers.join(1)
    within(LIMIT_S, lambda: w0.do(mine)["workers_joined"] == 2, "it is back")
    w0.do(call, "w1", max, 1, 2, times=3)
    after = w0.do(peer, "w1")
    assert after["calls_made"] == 13 and after["bytes_sent"] > before["bytes_sent"]
    assert w0.do(peers) == ["w0", "w1"]
    again.do(end)
    within(LIMIT_S, lambda: w0.do(mine)["workers_left"] == 1, "it has left")
    w0.do(end)


def test_a_process_that_is_no_worker_has_no_metrics() -> None:
    for function in (rpc.metrics, rpc.metrics_text):
        with pytest.raises(RuntimeError, match="init_rpc first"):
            function()
