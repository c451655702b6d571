"""The position of a training run in its data, and the order of the samples.

    phase     0 before the first loop over run.epochs, 1 inside that loop, 2 after it, 3 inside the next loop, ...
    epoch     index of the epoch in its loop; 0 outside of a loop
    pass      index of this call of run.batches within the epoch
    done      number of samples of this pass that are done, as defined below

The order of a pass is drawn from (seed, phase, epoch, pass). A checkpoint stores the position, and a resumed run
continues with the next sample without reading the earlier ones again; a stream without a saved state is read again and
its earlier samples dropped.

The samples of a batch are done when a step has used the batch, or when the loop asks for the next batch. So a
checkpoint saved after the step, inside the loop body, counts that batch as done.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...tensor.random.keys import Key


@dataclass(slots=True)
class Pass:
    """One pass over a data set: one call of `run.batches`."""

    length: int | None  # number of samples. None for a stream, whose length is unknown
    key: Key  # determines the order of the samples
    done: int = 0  # number of samples that are done
    stream_state: Any = None  # state of the stream after these samples, if it has one
    is_finished: bool = False
    next_done: int | None = None  # value of `done` once the current batch is done. None before the first batch
    next_stream_state: Any = None

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

    def start_batch(self, end: int, stream_state: Any = None) -> None:
        """Make the batch that ends at `end` the current one."""
        self.next_done, self.next_stream_state = end, stream_state

    def advance(self) -> None:
        """Mark the current batch as done: a step has used it, or the loop asks for the next one."""
        if self.next_done is not None:
            self.done, self.stream_state = self.next_done, self.next_stream_state

    def range_at(self, start: int, batch_size: int, drop_last: bool) -> range | None:
        """Return the range of the batch that begins at `start`. Return None if the pass has no such batch."""
        assert self.length is not None, "a stream has no length"
        stop = min(start + batch_size, self.length)
        return None if stop <= start or (drop_last and stop - start < batch_size) else range(start, stop)

    def state(self) -> dict[str, Any]:
        state = {"length": self.length, "done": self.done, "finished": self.is_finished}
        return state if self.stream_state is None else state | {"stream": self.stream_state}


@dataclass(slots=True)
class DataPosition:
    """See the module. `resumed`: state of the position of the checkpoint from which the run continues."""

    seed: int
    phase: int = 0
    epoch: int = 0
    passes: list[Pass] = field(default_factory=list)
    resumed: Mapping[str, Any] | None = None

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs of one loop.

        A resumed run skips loops before the checkpoint, and continues with the checkpoint's epoch, or the next one if
        that epoch was complete.
        """
        self._enter(self.phase + 1)
        first = 0
        if self.resumed is not None and self.resumed["phase"] >= self.phase:
            first = count if self.resumed["phase"] > self.phase else self._resume_epoch(self.resumed)
        try:
            for epoch in range(first, count):
                self.epoch, self.passes = epoch, []
                yield epoch
        finally:  # also if the loop is left by `break`
            self._enter(self.phase + 1)

    def _enter(self, phase: int) -> None:
        self.phase, self.epoch, self.passes = phase, 0, []

    def _resume_epoch(self, resumed: Mapping[str, Any]) -> int:
        """Return the epoch to continue with. Clears `resumed` if the checkpoint's epoch was complete."""
        passes = resumed["passes"]
        is_complete = bool(passes) and all(state["finished"] for state in passes)
        if is_complete:
            self.resumed = None
        return int(resumed["epoch"]) + int(is_complete)

    def begin_pass(self, length: int | None) -> Pass:
        pass_index = len(self.passes)
        key = Key(self.seed).fold_in("order").fold_in(self.phase).fold_in(self.epoch).fold_in(pass_index)
        data_pass = Pass(length, key)
        self.passes.append(data_pass)
        if self.resumed is not None:
            self._resume(data_pass, pass_index, self.resumed)
        return data_pass

    def _resume(self, data_pass: Pass, pass_index: int, resumed: Mapping[str, Any]) -> None:
        if resumed["phase"] > self.phase:
            data_pass.is_finished = True
        elif (resumed["phase"], resumed["epoch"]) == (self.phase, self.epoch) and pass_index < len(resumed["passes"]):
            state = resumed["passes"][pass_index]
            if state["length"] != data_pass.length and not state["finished"]:
                raise ValueError(
                    f"the data set has {data_pass.length} samples, but had {state['length']} when the checkpoint was "
                    f"saved in epoch {self.epoch} after {state['done']} samples.\n"
                    f"Resume with the same data set: its length determines the order of the samples."
                )
            data_pass.done, data_pass.is_finished = state["done"], state["finished"]
            data_pass.stream_state = state.get("stream")

    def mark_used(self) -> None:
        """Mark the current batch of every pass of this epoch as done, because a step has run."""
        for data_pass in self.passes:
            data_pass.advance()

    @property
    def is_in_epochs(self) -> bool:
        """True inside a loop over `run.epochs`."""
        return self.phase % 2 == 1

    @property
    def has_started(self) -> bool:
        """True once a loop over epochs or a pass has started. Then it is too late to resume."""
        return self.phase > 0 or bool(self.passes)

    def state(self) -> dict[str, Any]:
        passes = [data_pass.state() for data_pass in self.passes]
        if self.resumed is not None:
            resumed_at = (self.resumed["phase"], self.resumed["epoch"])
            if resumed_at > (self.phase, self.epoch):
                return dict(self.resumed)  # the position of the checkpoint is not reached yet
            if resumed_at == (self.phase, self.epoch):
                passes += self.resumed["passes"][len(passes) :]
        return {"phase": self.phase, "epoch": self.epoch, "passes": passes}
