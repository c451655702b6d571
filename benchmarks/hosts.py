"""Training over two hosts on networks of 1 and 10 Gbit/s, and of 1 ms there and back: fanwise.run beside DDP over Gloo.

    two network namespaces with a cable between them --a process in each, one thread--> ms a step, MB sent

The model is an MLP with 7.5 MB of gradients, a batch has 256 samples over both hosts, the optimizer is SGD with
momentum. Each round has new processes, which make all ways in turn. A number is the median of the rounds, with the
least and the greatest. fanwise's links are encrypted, Gloo's are not; that takes time of the same CPUs.
A cable with a delay is played by a third process (fanwise.testing.cables), which takes time of the same CPUs, too.
Needs root, for the namespaces.

    python benchmarks/hosts.py [--rounds 3] [--quick]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from measuring import finish, machine, say, spread, table
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import fanwise
from fanwise.links.shared_secret import new_secret
from fanwise.parallel import Run
from fanwise.testing.cables import Cable
from fanwise.testing.networks import PlayedHost, two_hosts, why_not

B, WARM, STEPS = 256, 8, 24
ALONE, EXACT, DDP = "one host alone", "exact", "DDP over Gloo"
NETWORKS = {
    "1 Gbit/s": 1,
    "10 Gbit/s": 10,
    "1 Gbit/s, 1 ms": Cable(delay_s=0.0005, gbits=1, mtu=65_000),
}
Found = dict[str, tuple[float, float]]  # ms a step and MB sent a step
_KEPT: list[nn.Module] = []


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(net(x), y, reduction="none")


def sent_bytes() -> int:
    return int(Path("/sys/class/net/cable/statistics/tx_bytes").read_text())


def timed(step: Callable[[], object]) -> tuple[float, float]:
    """What a step takes, after some, and what this host sends in one."""
    for _ in range(WARM):
        step()
    began_s, before = time.perf_counter(), sent_bytes()
    for _ in range(STEPS):
        step()
    return 1e3 * (time.perf_counter() - began_s) / STEPS, (sent_bytes() - before) / STEPS / 1e6


def train(run: Run) -> tuple[float, float]:
    net, x, y = model(), torch.randn(B, 784), torch.randint(0, 10, (B,))
    step = run.step(net, torch.optim.SGD(net.parameters(), 0.01, momentum=0.9), losses)
    return timed(lambda: step((x, y)))


def by_ddp(rank: int) -> tuple[float, float]:
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{os.environ['MASTER_ADDR']}:29777", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    net, x, y = DistributedDataParallel(model()), torch.randn(B // 2, 784), torch.randint(0, 10, (B // 2,))
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        losses(net, x, y).mean().backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
        optimizer.step()

    found = timed(step)
    distributed.destroy_process_group()
    # The group's last reference is the model's. Giving it up may wait for ever, for a thread that waits for the GIL.
    _KEPT.append(net)
    return found


def on_host(rank: int) -> None:
    """All ways in turn. The first process says what came of them."""
    torch.set_num_threads(1)
    found: Found = {}
    if rank == 0:
        found[ALONE] = train(fanwise.here(shards=2))
    found[EXACT] = fanwise.run(train, shards=2, progress=False)
    found[DDP] = by_ddp(rank)
    if rank == 0:
        print(json.dumps(found), flush=True)
    os._exit(0)  # see `_KEPT`


def started(
    host: PlayedHost,
    rank: int,
    first: PlayedHost,
    secret: str,
    *,
    program: str = __file__,
    errors: int = subprocess.DEVNULL,
) -> "subprocess.Popen[str]":
    told = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    told |= {"MASTER_ADDR": first.address, "MASTER_PORT": "29711", "FANWISE_SECRET": secret}
    told |= {"GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
    command = ["ip", "netns", "exec", host.name, sys.executable, program, "--host", str(rank)]
    return subprocess.Popen(command, env={**os.environ, **told}, stdout=subprocess.PIPE, stderr=errors, text=True)


@contextmanager
def network(name: str) -> Iterator[tuple[PlayedHost, PlayedHost]]:
    """Two hosts and what is between them, one of `NETWORKS`."""
    cable = NETWORKS[name]
    with two_hosts(cable if isinstance(cable, Cable) else None) as hosts:
        if isinstance(cable, int):
            for host in hosts:
                host.tc(*f"qdisc add dev cable root tbf rate {cable}gbit burst 1mb latency 50ms".split())
        yield hosts


def measured(name: str) -> Found:
    secret = new_secret()
    with network(name) as hosts:
        both = [started(host, rank, hosts[0], secret) for rank, host in enumerate(hosts)]
        said, _ = both[0].communicate(timeout=300)
        both[1].communicate(timeout=60)
    found: Found = json.loads(said)
    return found


def rounds_asked(on_host: Callable[[int], None]) -> int:
    """How many rounds the command line wants; 0: none, as this was a host's process, or nothing can be measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--host", type=int, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.host is not None:
        on_host(told.host)
        return 0
    if missing := why_not(with_cable=True):
        say(f"nothing is measured: {missing}")
        return 0
    return 1 if told.quick else int(told.rounds)


def main() -> None:
    if not (num_rounds := rounds_asked(on_host)):
        return
    facts = machine()
    rounds = []
    for number in range(num_rounds):
        say(f"round {number + 1}")
        rounds.append({name: measured(name) for name in NETWORKS})
    rows = []
    for way in (ALONE, EXACT, DDP):
        times = [spread([each[name][way][0] for each in rounds]).shown() for name in NETWORKS]
        rows.append([way, *times, f"{rounds[0]['1 Gbit/s'][way][1]:.2f}"])
    header = ["ms a step", *NETWORKS, "MB sent by a host in a step"]
    finish("hosts", [table(header, rows)], {"rounds": rounds}, facts=facts)


if __name__ == "__main__":
    main()
