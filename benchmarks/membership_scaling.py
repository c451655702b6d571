"""Messages and processor time in a group of 10 to 100,000 workers: one joins, leaves or dies, or all start at once.

churn        the real members and coordinator, with simulated links and time (`played_groups`). Members join, leave and
             die at random times; messages and bytes of all links, per change and per member
coordinator  only the decisions of the coordinator: processor time of a change and of the start of a static group;
             bytes of a change, and of the list of all members that a new member receives

    python benchmarks/membership_scaling.py [--size quick | small | full]      seconds, 1 minute, 10 minutes
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from measuring import finish, machine, say, table

from fanwise.rpc.membership.coordinator import Action, Coordinator, SendUpdate
from fanwise.rpc.membership.members import Hello, Member
from fanwise.rpc.messages.records import control_codec

import support_path  # noqa: F401  # isort: skip
from played_groups import PlayedGroup, check  # isort: skip

FIRST = 1_000_000  # incarnations begin here
EVERY_S = 0.1  # between two changes of a group of any size, in the mean


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of workers."""

    churn: Sequence[int]
    coordinator: Sequence[int]


SIZES = {
    "quick": Size((10, 50), (100, 1_000)),
    "small": Size((10, 100, 300), (1_000, 10_000)),
    "full": Size((10, 100, 1_000), (1_000, 10_000, 100_000)),
}


class Churn:
    """A group, and what was said in it since the last look."""

    def __init__(self, size: int, seed: int = 1) -> None:
        self.group, self.size = PlayedGroup(seed, None), size
        self._chance = random.Random(seed)
        self._said = (0, 0)
        self.group.start(0)
        self._run(2.0)

    def phases(self) -> list[tuple[str, int, float, float]]:
        """What happened, how many times, and messages and bytes of all links for each time."""
        some = self._chance.sample(range(1, self.size), 2 * max(1, self.size // 10))
        happenings: list[tuple[str, Sequence[int], Callable[[int], None]]] = [
            ("joins", range(1, self.size), self.group.start),
            ("leaves", some[::2], lambda rank: self.group.living(rank)[0].leave()),
            ("deaths", some[1::2], lambda rank: self.group.living(rank)[0].stop(killed=True)),
        ]
        return [self._phase(*happening) for happening in happenings]

    def _phase(self, name: str, ranks: Sequence[int], happen: Callable[[int], None]) -> tuple[str, int, float, float]:
        self._look()
        for rank in ranks:
            self._later(self._chance.uniform(0.0, EVERY_S * len(ranks)), happen, rank)
        self._run(EVERY_S * len(ranks) + 100.0)
        check(self.group)
        num_messages, num_bytes = self._look()
        return name, len(ranks), num_messages / len(ranks), num_bytes / len(ranks)

    def _later(self, delay_s: float, happen: Callable[[int], None], rank: int) -> None:
        self.group.sim.after(delay_s, lambda: happen(rank))

    def _run(self, for_s: float) -> None:
        self.group.sim.run(until_s=self.group.sim.clock.now_s() + for_s)

    def _look(self) -> tuple[int, int]:
        before, self._said = self._said, (self.group.num_messages.total(), self.group.num_bytes.total())
        return self._said[0] - before[0], self._said[1] - before[1]


def churn(size: Size, payload: dict[str, object]) -> str:
    """Messages and bytes a change."""
    rows: list[list[str]] = []
    for number in size.churn:
        for name, times, messages, num_bytes in Churn(number).phases():
            each = [f"{messages / number:.2f}", f"{num_bytes / number:.0f}"]
            rows.append([f"{number:,}", name, f"{times:,}", f"{messages:,.0f}", f"{num_bytes:,.0f}", *each])
            say(f"  {rows[-1]}")
    payload["churn"] = rows
    header = ["workers", "what", "times", "messages each", "bytes each", "messages a worker", "bytes a worker"]
    return table(header, rows)


def member(rank: int) -> Member:
    """One as it is between hosts: the address and the host are as long as real ones."""
    host = f"node{rank // 8:05}"
    address = f"tls://10.{rank >> 16}.{rank >> 8 & 255}.{rank & 255}:41234"
    return Member(f"worker{rank}", rank, FIRST + rank, address, f"{host}/3f2a9c1e", 40_000 + rank % 8, 123_456)


def size_bytes(actions: Sequence[Action], to: int) -> int:
    """Return the size of the update for one member."""
    (action,) = (action for action in actions if isinstance(action, SendUpdate) and action.to == to)
    head, buffers = control_codec.dumps(("action", (action,)))
    return len(head) + sum(buffer.nbytes for buffer in buffers)


def coordinator(size: Size, payload: dict[str, object]) -> str:
    """The coordinator's decisions alone."""
    rows = []
    for number in size.coordinator:
        gc.collect()  # of the one before
        machine_of_group = Coordinator(member(0), world_size=number)
        began_s = time.process_time()
        actions: list[Action] = []
        for rank in range(number):
            actions = machine_of_group.hello(Hello(member(rank), number))
        whole = size_bytes(actions, FIRST + 1)
        confirm_all(machine_of_group)
        formed_s = time.process_time() - began_s
        began_s = time.process_time()
        actions = machine_of_group.lose(FIRST + number // 2, "its process has ended")
        change = size_bytes(actions, FIRST + 1)
        confirm_all(machine_of_group)
        changed_s = time.process_time() - began_s
        row = [f"{number:,}", f"{1e3 * changed_s:,.1f}", f"{1e6 * changed_s / number:.2f}", f"{change:,}"]
        row += [f"{formed_s:,.2f}", f"{whole:,}", f"{whole * number / 2**30:,.2f}"]
        rows.append(row)
        say(f"  {row}")
    payload["coordinator"] = rows
    header = [
        "workers",
        "a death, ms",
        "us a worker",
        "bytes a worker",
        "all begin, s",
        "all members, bytes",
        "to all, GiB",
    ]
    return table(header, rows)


def confirm_all(machine_of_group: Coordinator) -> None:
    """All members confirm the newest view."""
    for incarnation in [member.incarnation for member in machine_of_group.members.values()]:
        machine_of_group.confirm(incarnation, machine_of_group.number)


PARTS = {"churn": churn, "coordinator": coordinator}


def main() -> None:
    parser = argparse.ArgumentParser(description="what a change of a large rpc group costs")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--tables", action="append", default=[], choices=list(PARTS), help="may repeat; default: all")
    args = parser.parse_args()
    facts, payload = machine(), dict[str, object]()
    tables = [PARTS[name](SIZES[args.size], payload) for name in args.tables or PARTS]
    finish("membership_scaling", tables, payload, facts=facts)


if __name__ == "__main__":
    main()
