"""Played runs: the real `SharedMemoryTeam`, `Membership` and `ControlBlock`, each member an actor on a `Stage`.

    run = PlayedRun(seed, members=4, kills=3); run.play()

Between any two looks at the control block, and in the middle of a message, another actor may go on, or be killed. What
stands for the training is a list of transactions: each member brings its share of the shards, and all must see each
shard once. The supervisor is played: it hears what was said, sees deaths late, and does what `Membership` orders.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stages import Stage

from fanwise.base.huge_pages import FileMap
from fanwise.parallel.comm.control_block import FAILED, SUPERVISOR, ControlBlock
from fanwise.parallel.comm.shared_memory import SharedMemory
from fanwise.parallel.comm.shm_team import RunEnded, SharedMemoryTeam, pack, wait_for_answer
from fanwise.parallel.comm.team import Monitor, report_together
from fanwise.parallel.launch.membership import Membership, View
from fanwise.parallel.step.tree import assign

SHARDS = 6
KINDS = ("step", "mean", "report")


class PlayedMemory(SharedMemory):
    """Memory of one process. A write is seen in two halves."""

    def __init__(self, stage: Stage) -> None:
        self.path = ""
        self._stage = stage
        self._parts: dict[int, bytearray] = {}

    def map(self, offset: int, size_bytes: int, *, private: bool = False) -> FileMap:
        fd = os.memfd_create("played")
        try:
            os.ftruncate(fd, size_bytes)
            return FileMap(fd, size_bytes)
        finally:
            os.close(fd)

    def write(self, offset: int, data: bytes) -> None:
        part = self._parts.setdefault(offset, bytearray())
        part.extend(bytes(max(0, len(data) - len(part))))
        half = len(data) // 2
        part[:half] = data[:half]
        self._stage.changed()
        self._stage.step()
        part[half : len(data)] = data[half:]
        self._stage.step()

    def read(self, offset: int, size_bytes: int) -> bytes:
        self._stage.step()
        start = offset if offset in self._parts else offset - 8
        part = self._parts.get(start, bytearray())
        return bytes(part[offset - start : offset - start + size_bytes])


class PlayedControlBlock(ControlBlock):
    """The real control block, on which others may do something between any two looks."""

    def __init__(self, memory: PlayedMemory, stage: Stage) -> None:
        super().__init__(memory)
        self._stage = stage
        self._numbers: Any = _Numbers(self._numbers, stage)  # Any: in the place of a memoryview

    def _wait(self, index: int, number: int) -> None:
        self._stage.wait()


class _Numbers:
    """Numbers of a control block."""

    def __init__(self, numbers: memoryview, stage: Stage) -> None:
        self._numbers = numbers
        self._stage = stage

    def __getitem__(self, place: int | slice) -> Any:  # Any: a number, or several
        self._stage.step()
        return self._numbers[place] if isinstance(place, int) else list(self._numbers[place])

    def __setitem__(self, place: int, number: int) -> None:
        self._stage.step()
        if self._numbers[place] != number:
            self._stage.changed()
        self._numbers[place] = number


class PlayedSender:
    """Messages in a list."""

    def __init__(self, stage: Stage, said: list[tuple[Any, ...]]) -> None:  # Any: what was said
        self._stage = stage
        self._said = said

    def say(self, *message: Any) -> None:  # Any: what can be pickled
        self._stage.step()
        self._said.append(message)
        self._stage.changed()
        self._stage.step()


@dataclass
class Life:
    """One process: what it has said, and which transactions it has done."""

    rank: int
    name: str
    said: list[tuple[Any, ...]] = field(default_factory=list)  # Any: what was said
    heard: int = 0
    done: list[object] = field(default_factory=list)
    returns: bool = False
    is_heard_out: bool = False


class PlayedRun:
    """See the module.

    Args:
        seed: of everything. calm: how often the same process goes on, 0 to 1.
        member, views: broken ones, to see that they are caught. versions: of what a process brings to a step; with one
            it is written while others read it.

    Attributes:
        lives: all processes there were. reports: the transactions that were reported, in order.
        killed: how many were killed in the middle.
        kinds: of the transactions. places: the turns at which each of them ended, as its members have it.
        result: the transactions that the first process did; None if all were lost.
    """

    def __init__(
        self,
        seed: int,
        *,
        members: int,
        transactions: int,
        kills: int,
        calm: float = 0.5,
        member: type[SharedMemoryTeam] = SharedMemoryTeam,
        views: type[Membership] = Membership,
        versions: int = 2,
    ) -> None:
        self.stage = Stage(seed, calm=calm)
        self.lives: list[Life] = []
        self.reports: list[int] = []
        self.killed = 0
        self.places: dict[int, set[int]] = {}
        self.result: list[object] | None = None
        self.is_lost = False  # all members were killed
        chance = self.stage.chance
        self.kinds = [chance.choice(KINDS) for _ in range(transactions)]
        self.barriers = [chance.randrange(3) for _ in range(transactions)]
        self._moments = sorted(int(chance.expovariate(1 / 300)) for _ in range(kills))
        self._ranks = members
        self._memory = PlayedMemory(self.stage)
        self._control = PlayedControlBlock(self._memory, self.stage)
        self._make_member = member
        self._views = views(tuple(range(members)), self._control.arrived)
        self._answered = 0
        self._versions = versions
        self._nodes: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.stage.before_step = self._perhaps_kill

    def play(self) -> None:
        """Raises AssertionError when nobody gets on, or what a member raised."""
        self.stage.enter("supervisor", self._supervise)
        self.stage.play(until=lambda: self.result is not None or self.is_lost)
        for name in ["supervisor", *(life.name for life in self.lives)]:
            if (error := self.stage.error_of(name)) is not None:
                raise error

    def _perhaps_kill(self) -> None:
        if not self._moments or self.stage.steps < self._moments[0]:
            return
        del self._moments[0]
        living = [life for life in self.lives if not self.stage.is_over(life.name)]
        if len(living) > 1:
            self.killed += 1
            self.stage.kill(self.stage.chance.choice(living).name)

    # -- the supervisor --------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        self._control.decide(self._views.view, self._views.members, 0)
        self._control.set_view(self._views.view)
        for rank in range(self._ranks):
            self._start(rank)
        while self.result is None and not self.is_lost:
            for life in list(self.lives):
                is_over = self.stage.is_over(life.name)
                self._listen(life)
                if is_over and not life.is_heard_out:
                    life.is_heard_out = True
                    self._over(life)
            self.stage.wait()

    def _start(self, rank: int) -> None:
        life = Life(rank, f"rank {rank}, life {len(self.lives)}")
        self.lives.append(life)
        self.stage.enter(life.name, lambda: self._live(life))

    def _listen(self, life: Life) -> None:
        while life.heard < len(life.said):
            name, *content = life.said[life.heard]
            life.heard += 1
            match name:
                case "acknowledged":
                    self._obey(self._views.acknowledged(life.rank, content[0]))
                case "report":
                    self._report(*content)

    def _report(self, request: int, values: dict[str, Any]) -> None:  # Any: numbers
        if request > self._answered:
            self.reports.append(values["number"])
            self._control.put(SUPERVISOR, request % 2, pack("CONTINUE"))
            self._answered = request
            self._control.set_answered(request)

    def _over(self, life: Life) -> None:
        if life.returns:
            self.result = life.done
            self._control.end(FAILED, self._ranks)
            return
        self._obey(self._views.lost(life.rank))
        self.is_lost = not self._views.living

    def _obey(self, view: View | None) -> None:
        if view is not None:
            if view.members:
                self._control.decide(view.number, view.members, view.committed)
            self._control.set_view(view.number)

    # -- a member --------------------------------------------------------------------------------------------------

    def _live(self, life: Life) -> None:
        try:
            self._train(life)
        except RunEnded:
            return

    def _train(self, life: Life) -> None:
        sender = PlayedSender(self.stage, life.said)
        member = self._make_member(self._memory, self._control, life.rank, self._ranks, sender.say)
        for number in range(len(self.kinds)):
            self._transact(member, number, life)
            life.done.append(number)
            _, turn = self._control.arrived(life.rank)
            self.places.setdefault(number, set()).add(turn)
        member.finish()
        sender.say("returns")
        life.returns = True

    def _monitor(self, member: SharedMemoryTeam, life: Life) -> Monitor:
        def report(number: int, values: Mapping[str, Any]) -> None:
            PlayedSender(self.stage, life.said).say("report", number, dict(values))
            assert wait_for_answer(self._control, number, member.check_members) == "CONTINUE"

        return Monitor(report)

    def _transact(self, member: SharedMemoryTeam, number: int, life: Life) -> None:
        match self.kinds[number]:
            case "step":
                member.together(lambda: self._step(member, number))
            case "mean":
                brought = member.together(lambda: member.gather("takes a mean", self._share(member, number)))
                _check([shard for share in brought for shard in share], number)
            case "report":
                report_together(
                    member, self._monitor(member, life), self.kinds[: number + 1].count("report"), {"number": number}
                )

    def _step(self, member: SharedMemoryTeam, number: int) -> None:
        share, version = self._share(member, number), member.next_seq % self._versions
        self._write_node(member.rank, version, share)
        said = member.gather("makes a step", share)
        _check([shard for share in said for shard in share], number)
        _check([shard for rank in member.members for shard in self._read_node(rank, version)], number)
        for _ in range(self.barriers[number]):
            member.barrier()

    def _write_node(self, rank: int, version: int, share: list[tuple[int, int]]) -> None:
        """As gradients are, in many places, without a word to anybody."""
        node = self._nodes[rank, version] = self._nodes.get((rank, version), [])
        self.stage.step()
        node.clear()
        self.stage.step()
        node.extend(share)
        self.stage.step()

    def _read_node(self, rank: int, version: int) -> list[tuple[int, int]]:
        self.stage.step()
        return list(self._nodes[rank, version])

    def _share(self, member: SharedMemoryTeam, number: int) -> list[tuple[int, int]]:
        return [(number, shard) for shard in assign(SHARDS, member.size)[member.index]]


def _check(found: list[tuple[int, int]], number: int) -> None:
    """As a sum over the tree of shards does, which cannot be made of others."""
    assert found == [(number, shard) for shard in range(SHARDS)], f"transaction {number} saw {found}"
