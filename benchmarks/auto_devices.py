"""Whether devices="auto" over two hosts is ever slower than one host alone, on networks of 1 and 10 Gbit/s.

    two network namespaces with a cable between them (tc) --a process in each, one thread--> ms a step

Three models: `computing` has much to compute and 0.04 MB of gradients, `exchanging` 7.5 MB and a batch of 16,
`between` the same with a batch of 256. Each round has new processes. They train on one host, on both, and as
devices="auto" does: it begins on both, decides after 25 steps, and is timed after that, when who was left out has
ended. Medians of steps. Needs root, for the namespaces.

    python benchmarks/auto_devices.py [--rounds 3] [--quick]
"""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable

import torch
from hosts import NETWORKS, network, rounds_asked, started
from measuring import finish, machine, say, spread, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.base.errors import WorkerLostError
from fanwise.links.shared_secret import new_secret
from fanwise.parallel import Run
from fanwise.parallel.data.order import Progress
from fanwise.parallel.hosts.meeting import met
from fanwise.parallel.hosts.team import entered
from fanwise.parallel.plans import Plan
from fanwise.parallel.process_settings.applied import surroundings
from fanwise.pool import from_environment

WARM, STEPS = 30, 24  # of which the first 25 are those after which it decides
OTHER_S = 2.0  # that the other process takes of the same cores, to load and to end
CPU = torch.device("cpu")
Made = tuple[nn.Module, Tensor, int]  # a model, inputs, classes


def computing() -> Made:
    layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32, 10)), torch.randn(64, 1, 28, 28), 10


def perceptron(samples: int) -> Made:
    layers = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return nn.Sequential(*layers), torch.randn(samples, 784), 10


MODELS: dict[str, Callable[[], Made]] = {
    "computing": computing,
    "between": lambda: perceptron(256),
    "exchanging": lambda: perceptron(16),
}


def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(net(x), y, reduction="none")


def train(run: Run, name: str) -> tuple[float, int]:
    """ms a step, and how many processes are left."""
    net, x, classes = MODELS[name]()
    y = torch.randint(0, classes, (len(x),))
    step = run.step(net, torch.optim.SGD(net.parameters(), 0.01, momentum=0.9), losses)
    began_with = run.world_size
    for _ in range(WARM):
        step((x, y))
    if run.world_size < began_with:
        time.sleep(OTHER_S)
    took_s = []
    for _ in range(STEPS):
        began_s = time.perf_counter()
        step((x, y))
        took_s.append(time.perf_counter() - began_s)
    return 1e3 * statistics.median(took_s), run.world_size


def by_auto(name: str) -> tuple[float, int]:
    """As a process of a run on a cluster (parallel/cluster/rank.py). Of the one that is left out, nothing."""
    me = from_environment()
    assert me is not None
    torch.manual_seed(0)
    with surroundings(1, CPU, exact=True), entered(met(me, goes_on=True), reduce="exact", fewest=True) as team:
        return train(Run(Plan(2, 1, Progress(0)), (CPU,), team=team), name)


def on_host(rank: int) -> None:
    torch.set_num_threads(1)
    name = os.environ["AUTO_MODEL"]
    time.sleep(OTHER_S)
    alone = train(fanwise.here(shards=2), name)[0] if rank == 0 else 0.0
    both, _ = fanwise.run(lambda run: train(run, name), shards=2, progress=False)
    try:
        auto, left = by_auto(name)
    except WorkerLostError:
        auto, left = 0.0, 0
    print(json.dumps([alone, both, auto, left]))


def measured(cable: str, name: str) -> tuple[list[float], str]:
    """The four numbers, and the line that was said."""
    secret = new_secret()
    os.environ["AUTO_MODEL"] = name
    with network(cable) as hosts:
        both = [
            started(host, rank, hosts[0], secret, program=__file__, errors=subprocess.PIPE)
            for rank, host in enumerate(hosts)
        ]
        said, errors = zip(*(each.communicate(timeout=300) for each in both), strict=True)
    if not all(said):
        raise RuntimeError(f"nothing was measured: {errors}")
    line = next((each for each in "".join(errors).splitlines() if "would take about" in each), "")
    first, second = map(json.loads, said)
    return first[:2] + (first if first[3] else second)[2:], line


def main() -> None:
    if not (num_rounds := rounds_asked(on_host)):
        return
    facts = machine()
    found: dict[tuple[str, str], list[list[float]]] = {}
    lines: dict[tuple[str, str], str] = {}
    for number in range(num_rounds):
        for name in MODELS:
            for cable in NETWORKS:
                numbers, line = measured(cable, name)
                say(f"round {number + 1}, {name}, {cable}: {numbers}; {line}")
                found.setdefault((name, cable), []).append(numbers)
                lines[name, cable] = line or lines.get((name, cable), "")
    rows = []
    for (name, cable), each in found.items():
        alone, both, auto = (spread([numbers[place] for numbers in each]) for place in range(3))
        chosen = ", ".join(sorted({"one host" if numbers[3] == 1 else "both" for numbers in each}))
        ratio = auto.median / min(alone.median, both.median)
        rows.append(
            [
                name,
                cable,
                alone.shown(),
                both.shown(),
                auto.shown(),
                chosen,
                f"{auto.median / alone.median:.2f}",
                f"{ratio:.2f}",
            ]
        )
    header = [
        "model",
        "cable",
        "one host, ms a step",
        "both",
        'devices="auto"',
        "it chose",
        "auto / one host",
        "auto / better",
    ]
    shown = {f"{name}, {cable}": {"rounds": each, "line": lines[name, cable]} for (name, cable), each in found.items()}
    finish("auto_devices", [table(header, rows)], {"found": shown}, facts=facts)


if __name__ == "__main__":
    main()
