"""The position of a training in its data, and the order of the samples.

    phase     0 before the first loop over run.epochs, 1 inside that loop, 2 after it, 3 inside the next loop, ...
    epoch     number of the epoch in its loop; 0 outside of a loop
    pass      number of the call of run.batches in this epoch
    done      number of samples of this pass that steps have used

The order of a pass is drawn from (seed, phase, epoch, pass). A checkpoint stores the position, and a resumed run
continues with the next sample without reading the earlier ones again.

The samples of a batch are done when a step has used the batch, or when the loop asks for the next batch. So a
checkpoint that is saved in the body of a loop contains the batch if it is saved after the step.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...tensor.random.keys import Key


@dataclass(slots=True)
class Pass:
    """One pass over a data set: one call of `run.batches`.

    Args:
        length: number of samples. None for a stream, whose length is unknown.
        key: determines the order of the samples.
        done: number of samples that are done.
        stream: state of the stream after these samples. None if it has none.
    """

    length: int | None
    key: Key
    done: int = 0
    stream: Any = None
    is_finished: bool = False
    next_done: int | None = None  # `done` after the batch that the loop body has. None before the first batch
    next_stream: Any = None  # `stream` after that batch

    def ranges(self, batch_size: int, drop_last: bool) -> Iterator[range]:
        """Yield the range of each batch in the order of the samples."""
        while not self.is_finished:
            batch = self.range_at(self.done, batch_size, drop_last)
            if batch is None:
                self.is_finished = True
                return
            self.start_batch(batch.stop)
            yield batch
            self.advance()

    def start_batch(self, end: int, stream: Any = None) -> None:
        """Note that the loop body gets the batch that ends at `end`. `stream`: state of the stream after the batch."""
        self.next_done, self.next_stream = end, stream

    def advance(self) -> None:
        """Note that a step has used the batch of the loop body, or that the loop asks for the next batch."""
        if self.next_done is not None:
            self.done, self.stream = self.next_done, self.next_stream

    def range_at(self, start: int, batch_size: int, drop_last: bool) -> range | None:
        """Return the range of the batch that begins at `start`. Return None if the pass has no such batch."""
        assert self.length is not None, "a stream has no length"
        stop = min(start + batch_size, self.length)
        return None if stop <= start or (drop_last and stop - start < batch_size) else range(start, stop)

    def state(self) -> dict[str, Any]:
        state = {"length": self.length, "done": self.done, "finished": self.is_finished}
        return state if self.stream is None else state | {"stream": self.stream}


@dataclass(slots=True)
class DataPosition:
    """The position of a training in its data.

    Args:
        resumed: the position of the checkpoint from which the run continues, as `state` returned it.
    """

    seed: int
    phase: int = 0
    epoch: int = 0
    passes: list[Pass] = field(default_factory=list)
    resumed: Mapping[str, Any] | None = None

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs of one loop. A resumed run begins with the epoch of the checkpoint."""
        self._enter(self.phase + 1)
        first = 0
        if self.resumed is not None and self.resumed["phase"] >= self.phase:
            first = count if self.resumed["phase"] > self.phase else self._first_epoch(self.resumed)
        try:
            for epoch in range(first, count):
                self.epoch, self.passes = epoch, []
                yield epoch
        finally:  # also if the loop is left by `break`
            self._enter(self.phase + 1)

    def _enter(self, phase: int) -> None:
        self.phase, self.epoch, self.passes = phase, 0, []

    def _first_epoch(self, resumed: Mapping[str, Any]) -> int:
        passes = resumed["passes"]
        is_complete = bool(passes) and all(state["finished"] for state in passes)
        if is_complete:
            self.resumed = None  # begin the next epoch with its first sample
        return int(resumed["epoch"]) + int(is_complete)

    def begin_pass(self, length: int | None) -> Pass:
        """Start a pass over a data set of this length.

        Raises:
            ValueError: the data set had another length when the checkpoint was saved.
        """
        number = len(self.passes)
        key = Key(self.seed).fold_in("order").fold_in(self.phase).fold_in(self.epoch).fold_in(number)
        started = Pass(length, key)
        self.passes.append(started)
        if self.resumed is not None:
            self._resume(started, number, self.resumed)
        return started

    def _resume(self, started: Pass, number: int, resumed: Mapping[str, Any]) -> None:
        if resumed["phase"] > self.phase:
            started.is_finished = True
        elif (resumed["phase"], resumed["epoch"]) == (self.phase, self.epoch) and number < len(resumed["passes"]):
            state = resumed["passes"][number]
            if state["length"] != started.length and not state["finished"]:
                raise ValueError(
                    f"the data set has {started.length} samples, but had {state['length']} when the checkpoint was "
                    f"saved in epoch {self.epoch} after {state['done']} samples.\n"
                    f"Resume with the same data set: its length determines the order of the samples."
                )
            started.done, started.is_finished, started.stream = state["done"], state["finished"], state.get("stream")

    def mark_used(self) -> None:
        """Note that a step has used the batches of the loop bodies."""
        for started in self.passes:
            started.advance()

    @property
    def is_in_epochs(self) -> bool:
        """True inside a loop over `run.epochs`."""
        return self.phase % 2 == 1

    @property
    def has_started(self) -> bool:
        """True once a loop over epochs or a pass has started. Then it is too late to resume."""
        return self.phase > 0 or bool(self.passes)

    def state(self) -> dict[str, Any]:
        passes = [started.state() for started in self.passes]
        if self.resumed is not None:
            resumed_at = (self.resumed["phase"], self.resumed["epoch"])
            if resumed_at > (self.phase, self.epoch):
                return dict(self.resumed)  # the position of the checkpoint is not reached yet
            if resumed_at == (self.phase, self.epoch):
                passes += self.resumed["passes"][len(passes) :]
        return {"phase": self.phase, "epoch": self.epoch, "passes": passes}
