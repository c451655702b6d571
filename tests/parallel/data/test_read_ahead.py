"""Which worker reads which shard: nothing is read twice into a training, nothing is lost, whoever dies."""

from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fanwise.parallel.data.ahead import ReadAhead, Send, Shard

WORKERS, MOST, SHARDS = 3, 2, 3


@dataclass
class Model:
    """What is wanted and where it is, written down as plainly as it can be."""

    place: dict[Shard, str] = field(default_factory=dict)  # "waits", "there", or the number of a worker
    queues: list[list[Shard]] = field(default_factory=lambda: [[] for _ in range(WORKERS)])
    deaths: dict[Shard, int] = field(default_factory=dict)

    def held(self, worker: int) -> list[Shard]:
        return [shard for shard in self.queues[worker] if self.place.get(shard) == str(worker)]


class AheadMachine(RuleBasedStateMachine):
    """A loop over batches, its workers, and deaths of these, in any order."""

    make: type[ReadAhead] = ReadAhead

    def __init__(self) -> None:
        super().__init__()
        self.book = self.make(WORKERS, most=MOST)
        self.model = Model()
        self.batch = 0

    @rule(ahead=st.integers(0, 4), shards=st.sets(st.integers(0, SHARDS - 1), min_size=1))
    def want(self, ahead: int, shards: set[int]) -> None:
        wanted = [(self.batch + ahead, shard) for shard in shards]
        self.book.want(wanted)
        for shard in wanted:
            self.model.place.setdefault(shard, "waits")

    @rule()
    def send(self) -> None:
        expected = []
        for shard in sorted(shard for shard, place in self.model.place.items() if place == "waits"):
            worker = min(range(WORKERS), key=lambda each: len(self.model.queues[each]))
            if len(self.model.queues[worker]) == MOST:
                break
            self.model.queues[worker].append(shard)
            self.model.place[shard] = str(worker)
            expected.append(Send(worker, shard))
        assert self.book.sends() == expected

    @rule(worker=st.integers(0, WORKERS - 1))
    def comes(self, worker: int) -> None:
        if not self.model.queues[worker]:
            return
        shard = self.model.queues[worker].pop(0)
        is_wanted = shard in self.model.place
        assert self.book.came(worker, shard) == is_wanted
        self.model.deaths.pop(shard, None)
        if is_wanted:
            self.model.place[shard] = "there"

    @rule(worker=st.integers(0, WORKERS - 1))
    def dies(self, worker: int) -> None:
        queue = self.model.queues[worker]
        at = queue[0] if queue and queue[0] in self.model.place else None
        for shard in self.model.held(worker):
            self.model.place[shard] = "waits"
        self.model.queues[worker] = []
        if at is not None:
            self.model.deaths[at] = self.model.deaths.get(at, 0) + 1
        assert self.book.died(worker) == at

    @precondition(lambda self: any(place == "waits" for place in self.model.place.values()))
    @rule(data=st.data())
    def fails(self, data: st.DataObject) -> None:
        shard = data.draw(st.sampled_from(sorted(key for key, place in self.model.place.items() if place == "waits")))
        self.book.failed(shard)
        self.model.place[shard] = "there"
        self.model.deaths.pop(shard, None)

    @rule(shard=st.integers(0, SHARDS - 1))
    def takes(self, shard: int) -> None:
        key = (self.batch, shard)
        if self.model.place.get(key) == "there":
            self.book.taken(key)
            del self.model.place[key]

    @rule()
    def next_batch(self) -> None:
        self.batch += 1
        gone = {shard for shard in self.model.place if shard[0] < self.batch}
        assert self.book.drop_before(self.batch) == {each for each in gone if self.model.place[each] == "there"}
        for shard in gone:
            del self.model.place[shard]
        self.model.deaths = {shard: deaths for shard, deaths in self.model.deaths.items() if shard[0] >= self.batch}

    @invariant()
    def it_knows_what_the_model_knows(self) -> None:
        book, model = self.book, self.model
        assert book.waiting == sorted(shard for shard, place in model.place.items() if place == "waits")
        assert book.there == {shard for shard, place in model.place.items() if place == "there"}
        assert book.held == model.queues
        assert book.unwanted == {shard for queue in model.queues for shard in queue if shard not in model.place}
        assert book.deaths == model.deaths
        assert all(book.knows((self.batch, shard)) == ((self.batch, shard) in model.place) for shard in range(SHARDS))


TestReadAhead = AheadMachine.TestCase


class ForgetsTheDead(ReadAhead):
    """Broken: what a dead worker had is not read again."""

    def died(self, worker: int) -> Shard | None:
        kept = list(self.waiting)
        at = super().died(worker)
        self.waiting = kept
        return at


class KeepsWhatNobodyWants(ReadAhead):
    """Broken: what comes too late is kept."""

    def came(self, worker: int, shard: Shard) -> bool:
        self.unwanted.discard(shard)
        return super().came(worker, shard)


class ReadsTwice(ReadAhead):
    """Broken: what is wanted again while it is being read is sent once more."""

    def knows(self, shard: Shard) -> bool:
        return shard in self.there or shard in self.waiting


class NeverFull(ReadAhead):
    """Broken: a worker gets more than it may have."""

    def sends(self) -> list[Send]:
        self.most = 1000
        return super().sends()


@pytest.mark.parametrize("broken", [ForgetsTheDead, KeepsWhatNobodyWants, ReadsTwice, NeverFull])
def test_the_model_catches_a_broken_book(broken: type[ReadAhead]) -> None:
    machine = type("Broken", (AheadMachine,), {"make": broken})
    quick = settings(max_examples=200, stateful_step_count=20, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quick)
