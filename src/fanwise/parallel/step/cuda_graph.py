"""`run.step(..., capture=True)`: a whole training step as one CUDA graph.

    first step of a kind    eager: allocates the state of the optimizer, initializes libraries
    second                  eager, then captured and replayed from the same state; both must have equal bits
    4th, 8th, 16th, ...     replayed and compared again
    others                  replayed

Steps are of one kind if their batches have the same shapes, and the optimizer the same settings and parameters to
train. Inside the graph the batch is gathered from a data set on the device, or read from fixed memory that it was
copied to. The shards run on streams of their own. Tree addition, clipping and the update follow on one stream.

Python code of the model and of the optimizer runs only while a step is captured. If a later step would take another
branch, or draw numbers from Python or NumPy, the graph repeats the captured step instead. The comparisons find that.

With several processes, or with a scaled loss, a step is two graphs. Between them the gradients are exchanged, or it is
decided whether they are finite.
"""

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, is_tensor
from torch.optim import Optimizer

from ...tensor.random.keys import Key
from ..data.batch import Batch, Content, Rows, tensors_in
from ..rng import isolated_generators, seed_generators
from ..validation.fingerprints import have_same_bits
from .batch_execution import BatchExecution, TrainStages
from .gradients import Partial, add
from .loss_scale import are_finite
from .replicas import LossFn, ShardWork, add_shard_note
from .tree import Node, TreeSum

T = TypeVar("T")

_log = logging.getLogger(__name__)
_cuda: Any = torch.cuda  # parts of it have no annotations

_MAX_GRAPHS = 8
_PROBED_STEPS = range(20, 40)


class Graph(Protocol):
    """Device operations that are captured once and replayed. `CudaGraph`, or a simulation in the tests."""

    def capture(self, body: Callable[[], T]) -> T:
        """Capture the operations that `body` launches. Nothing is executed. Return its result."""

    def branch(self, number: int) -> AbstractContextManager[None]:
        """Capture the block on the stream of a branch, with the random numbers of that branch."""

    def join(self) -> None:
        """Let what follows wait for all branches."""

    def seed(self, number: int, key: Key) -> None:
        """Seed the random numbers of a branch for the next replay."""

    def replay(self) -> None:
        """Launch the captured operations."""


class CudaGraph:
    """A `Graph` on a CUDA device."""

    def __init__(self, device: torch.device, branches: int) -> None:
        with torch.cuda.device(device):
            self._graph = torch.cuda.CUDAGraph()
            self._main, *self._streams = (_cuda.Stream(device) for _ in range(1 + branches))
        torch.rand(1, device=device)  # creates the default generator
        self._default = torch.cuda.default_generators[self._main.device.index]
        self._generators = [self._default.clone_state() for _ in range(branches)]
        for generator in self._generators:
            self._graph.register_generator_state(generator)

    def capture(self, body: Callable[[], T]) -> T:
        # Other threads, such as those of a DataLoader, may use the device meanwhile.
        with (
            torch.cuda.device(self._main.device),
            torch.cuda.graph(self._graph, stream=self._main, capture_error_mode="thread_local"),
        ):
            return body()

    @contextmanager
    def branch(self, number: int) -> Iterator[None]:
        stream, before = self._streams[number], self._default.graphsafe_get_state()
        stream.wait_stream(self._main)
        self._default.graphsafe_set_state(self._generators[number])
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            self._default.graphsafe_set_state(before)

    def join(self) -> None:
        for stream in self._streams:
            self._main.wait_stream(stream)

    def seed(self, number: int, key: Key) -> None:
        self._generators[number].manual_seed(key.words[0])

    def replay(self) -> None:
        self._graph.replay()


# The graphs of each type of device: (device, branches) -> Graph.
GRAPHS: dict[str, Callable[[torch.device, int], Graph]] = {"cuda": CudaGraph}


class StepGraphs:
    """The CUDA graphs of one step, by kind of step; see the module."""

    def __init__(self, stages: TrainStages, execution: BatchExecution, optimizer: Optimizer) -> None:
        self._stages = stages
        self._execution = execution
        self._optimizer = optimizer
        self._graphs: dict[Hashable, _CapturedStep] = {}
        self._uses: dict[Hashable, int] = {}
        self._has_warned = False
        replica = execution.replica
        self._params = replica.params
        self._modules = [part for module in replica.modules.values() for part in module.modules()]
        # It replaces the tensors that graphs have captured.
        optimizer.register_load_state_dict_post_hook(lambda _: self._forget_all())

    def train(self, batch: Batch) -> Partial:
        """Execute a step. Return the sums over all shards.

        Raises:
            ValueError: the step cannot be captured; or its graph gave other bits than the step without it.
            TypeError: the batch holds values that are no tensors.
        """
        inputs = _Inputs.of(batch, self._execution.own_shards(batch))
        kind = (inputs.kind, self._settings())
        uses = self._uses[kind] = self._uses.pop(kind, 0) + 1  # the last key is the latest
        if uses == 1:
            if len(self._uses) > _MAX_GRAPHS:
                self._forget_least_recent()
            total = self._stages.train(batch)
            self._execution.replica.buffers.note_changes()
            return total
        captured = self._graphs.get(kind)
        if captured is None or uses & (uses - 1) == 0:
            return self._compared(kind, captured, batch, inputs)
        return captured.train(batch, inputs)

    def _settings(self) -> Hashable:
        """Return the values that are constants in a graph. A tensor, such as a learning rate, may change its value."""
        options = tuple(
            (name, id(value) if isinstance(value, Tensor) else repr(value))
            for group in self._optimizer.param_groups
            for name, value in group.items()
            if name != "params"
        )
        params = tuple((param.data_ptr(), param.requires_grad) for param in self._params)
        return options, params, tuple(module.training for module in self._modules)

    def _forget_all(self) -> None:
        self._graphs.clear()
        self._uses.clear()

    def _forget_least_recent(self) -> None:
        kind = next(iter(self._uses))
        del self._uses[kind]
        self._graphs.pop(kind, None)
        if self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "capture=True: this step has seen more than %d combinations of batch shapes and optimizer settings, so "
            "most of its steps run without a graph. Use batches of one size. If the learning rate changes at every "
            "step, give it as a tensor: AdamW(params, lr=torch.tensor(1e-3, device=run.device), capturable=True)",
            _MAX_GRAPHS,
        )

    def _compared(self, kind: Any, captured: "_CapturedStep | None", batch: Batch, inputs: "_Inputs") -> Partial:
        """Execute the step without the graph, restore the state, and replay the graph. Both must have equal bits."""
        state = _TrainingState(self._execution, self._stages, self._optimizer)
        before = state.copy()
        total = self._stages.train(batch)
        expected = state.copy()
        if expected.tensors.keys() != before.tensors.keys():  # it has initialized more of the optimizer
            return total
        state.restore(before)
        if captured is None:
            captured = _CapturedStep(self._stages, self._execution, self._optimizer, batch, inputs)
            self._graphs[kind] = captured
        result = captured.train(batch, inputs)
        different = state.first_difference(expected)
        if different is None and not have_same_bits(result.loss, total.loss):
            different = "the loss"
        if different is not None:
            raise ValueError(
                f"batch {self._execution.batches - 1} of step {self._execution.number} gave other bits as a CUDA graph "
                f"than without it: {different} differs. Python code of the model and of the optimizer runs only while "
                f"a step is captured, so counters, random numbers of Python or NumPy, and branches keep their values.\n"
                f"  wrong:  if random.random() < 0.5: x = layer(x)      # in forward\n"
                f"  right:  x = torch.where(torch.rand(len(x), 1, device=x.device) < 0.5, layer(x), x)\n"
                f"  right:  run.step(..., capture=False)"
            )
        return result


@dataclass(slots=True)
class _Snapshot:
    """Copies of tensors by name, and the numbers that change with a step."""

    tensors: dict[str, Tensor]
    batches: int
    executions: int
    updates: int
    loss_scale: Mapping[str, Any] | None


class _TrainingState:
    """Everything that a step changes: parameters, buffers, the state of the optimizer, and counts."""

    def __init__(self, execution: BatchExecution, stages: TrainStages, optimizer: Optimizer) -> None:
        self._execution = execution
        self._stages = stages
        self._optimizer = optimizer

    def copy(self) -> _Snapshot:
        execution = self._execution
        scale = execution.loss_scale
        return _Snapshot(
            {name: tensor.detach().clone() for name, tensor in self._tensors().items()},
            execution.batches,
            execution.executions,
            self._stages.updates,
            None if scale is None else scale.state_dict(),
        )

    def restore(self, snapshot: _Snapshot) -> None:
        execution = self._execution
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(snapshot.tensors[name])
        execution.batches, execution.executions = snapshot.batches, snapshot.executions
        self._stages.updates = snapshot.updates
        if execution.loss_scale is not None and snapshot.loss_scale is not None:
            execution.loss_scale.load_state_dict(snapshot.loss_scale)

    def first_difference(self, snapshot: _Snapshot) -> str | None:
        """Return the name of the first tensor that differs; None if all are equal."""
        for name, tensor in self._tensors().items():
            if not have_same_bits(tensor, snapshot.tensors[name]):
                return name
        return None

    def _tensors(self) -> dict[str, Tensor]:
        replica = self._execution.replica
        tensors: dict[str, Tensor] = {}
        names: dict[Tensor, str] = {}
        for prefix, module in replica.modules.items():
            params = dict(module.named_parameters(prefix))
            names |= {param: name for name, param in params.items()}
            tensors |= {f"parameter {name!r}": param for name, param in params.items()}
            tensors |= {f"buffer {name!r}": buffer for name, buffer in module.named_buffers(prefix)}
        for param, values in self._optimizer.state.items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"{name!r} of the optimizer for parameter {names.get(param)!r}"] = value
        return tensors


class _Inputs:
    """The inputs of a graph: indices of rows in a data set on the device, or the content of each shard.

    Attributes:
        kind: equal for inputs that one graph can read.
    """

    def __init__(self, sizes: tuple[int, ...], rows: Rows | None, contents: Sequence[Content | None]) -> None:
        self._sizes = sizes
        self._rows = rows
        self._contents = contents
        if rows is None:
            self._tensors = list(tensors_in(contents))
            self.kind: Any = (sizes, tuple(_structure(content) for content in contents))
        else:
            self._tensors = [rows.indices]
            self.kind = (sizes, tuple(tensor.data_ptr() for tensor in rows.tensors))

    @classmethod
    def of(cls, batch: Batch, own_shards: range) -> "_Inputs":
        """Return the inputs of the shards of this process.

        Raises:
            TypeError: it holds values that are no tensors.
        """
        indices = range(len(batch.sizes)) if batch.rows is None else ()
        contents = [batch.shard(index) if index in own_shards else None for index in indices]
        return cls(batch.sizes, batch.rows, contents)

    def copy(self) -> "_Inputs":
        """Return equal inputs in memory of their own."""
        if self._rows is None:
            return _Inputs(self._sizes, None, [_copied(content) for content in self._contents])
        return _Inputs(self._sizes, self._rows._replace(indices=self._rows.indices.clone()), ())

    def load(self, inputs: "_Inputs") -> None:
        torch._foreach_copy_(self._tensors, inputs._tensors)

    def shard(self, index: int) -> Content | None:
        if self._rows is None:
            return self._contents[index]
        start = sum(self._sizes[:index])
        return self._rows.content(range(start, start + self._sizes[index]))


class _CapturedStep:
    """A step that was captured."""

    def __init__(
        self,
        stages: TrainStages,
        execution: BatchExecution,
        optimizer: Optimizer,
        batch: Batch,
        inputs: _Inputs,
    ) -> None:
        # The graph reads them, even if the program puts others in their place.
        self._options = [value for group in optimizer.param_groups for value in group.values() if is_tensor(value)]
        self._stages = stages
        self._execution = execution
        self._replica = execution.replica
        self._inputs = inputs.copy()
        self._num_shards = len(batch.sizes)
        self._shards = [index for index in execution.own_shards(batch) if batch.sizes[index]]
        self._own = execution.own_shards(batch)
        is_scaled = execution.loss_scale is not None
        self._factor = torch.ones((), device=self._replica.device) if is_scaled else None
        self._sizes = batch.sizes
        self._updates_at_once = execution.team.size == 1 and execution.loss_scale is None
        new_graph = GRAPHS[self._replica.device.type]
        self._graph = new_graph(self._replica.device, len(self._shards))
        self._update_graph: Graph | None = None
        self._has_updated = False
        self._grads: list[Tensor | None] = []
        self._nodes: list[Node[Partial]] = []
        self._total: Partial | None = None
        self._memory: list[Partial | None] = []
        self._grad_norm: Tensor | None = None
        self._capture(batch)

    def train(self, batch: Batch, inputs: _Inputs) -> Partial:
        """Replay the step for another batch of its kind. Return the sums over all shards."""
        if self._updates_at_once:
            self._replay(batch, inputs)
            assert self._total is not None, "it was captured"
            total = replace(self._total)
            self._execution.record(batch, total)
            self._stages.updates += 1
        else:
            total = self._exchange(batch, inputs)
            self._execution.record(batch, total)
            scale = self._execution.loss_scale
            if scale is None or scale.adjust(are_finite(total.grads)):
                self._update(total.grads)
                self._stages.updates += 1
        if self._grad_norm is not None:
            self._stages.grad_norm = self._grad_norm.clone()
        return total

    def _replay(self, batch: Batch, inputs: _Inputs) -> None:
        self._inputs.load(inputs)
        if self._factor is not None:
            self._factor.fill_(self._execution.loss_factor(batch))
        key = self._execution.key
        for branch, index in enumerate(self._shards):
            self._graph.seed(branch, key.fold_in(index))
        self._graph.replay()

    def _exchange(self, batch: Batch, inputs: _Inputs) -> Partial:
        """Replay the shards, and add them over all processes."""
        execution = self._execution
        with execution.team.attempt(), execution.transaction():  # a lost process ends the run, as it has a GPU
            self._replay(batch, inputs)
            total = execution.reduce([_fresh(node) for node in self._nodes], batch, mean=True)
            execution.gather(total, mean=True)
        return total

    def _update(self, grads: Sequence[Tensor | None]) -> None:
        """Replay clipping and update. The first ones run without a graph, and initialize the optimizer."""
        if not self._has_updated:
            self._has_updated = True
            self._stages.clip_and_step(grads)
            self._grad_norm = self._stages.grad_norm
            return
        present = [grad for grad in grads if grad is not None]
        if self._update_graph is None:
            self._grads = [None if grad is None else torch.empty_like(grad) for grad in grads]
            self._update_graph = GRAPHS[self._replica.device.type](self._replica.device, 0)
            with _explained():
                self._update_graph.capture(self._clip_and_step)
        torch._foreach_copy_([grad for grad in self._grads if grad is not None], present)
        self._update_graph.replay()

    # -- the captured part ------------------------------------------------------------------------------------------

    def _capture(self, batch: Batch) -> None:
        with _explained(), isolated_generators():
            if self._updates_at_once:
                self._total = self._graph.capture(lambda: self._train(batch))
            else:
                self._nodes = self._graph.capture(self._forward_backward)

    def _train(self, batch: Batch) -> Partial:
        self._replica.buffers.save()
        total = self._execution.reduce(self._forward_backward(), batch, mean=True)
        self._execution.gather(total, mean=True)
        self._grads = total.grads
        self._clip_and_step()
        return total

    def _forward_backward(self) -> list[Node[Partial]]:
        """Execute each shard of this process on a branch, then add siblings along the tree."""
        with self._execution.shard_context(generators=()):
            nodes = [self._shard(index) for index in self._own]
            self._graph.join()
        self._memory = [node.value for node in nodes]  # a branch must not use it again: the sum is on another stream
        tree: TreeSum[Partial] = TreeSum(self._num_shards, add)
        for node in nodes:
            tree.put(_fresh(node))
        return tree.nodes

    def _shard(self, index: int) -> Node[Partial]:
        if index not in self._shards:
            return Node(index, index + 1, None)
        factor = 1.0 if self._factor is None else self._factor
        work = ShardWork(index, self._inputs.shard, self._sizes[index], False, factor)
        seed_generators(self._execution.key.fold_in(index), self._replica.generators[:1])
        with self._graph.branch(self._shards.index(index)), add_shard_note(work, self._num_shards):
            return Node(index, index + 1, self._replica.differentiate_concurrently(work))

    def _clip_and_step(self) -> None:
        self._stages.clip_and_step(self._grads)
        self._grad_norm = self._stages.grad_norm


def record_event() -> Callable[[], bool]:
    """Record an event on the current CUDA stream. Return a function that tells whether the device has reached it."""
    event = _cuda.Event()
    event.record()
    reached: Callable[[], bool] = event.query
    return reached


class LaunchProbe:
    """Trains without graphs. Suggests `capture=True` once if launching a step takes longer than executing it.

    Args:
        record: as `record_event`.
    """

    def __init__(self, stages: TrainStages, record: Callable[[], Callable[[], bool]] = record_event) -> None:
        self._stages = stages
        self._record = record
        self._steps = 0
        self._launch_bound = 0

    def train(self, batch: Batch) -> Partial:
        """Execute the stages of a step. Return the sums over all shards."""
        began_s = time.perf_counter()
        total = self._stages.train(batch)
        if self._steps in _PROBED_STEPS:
            self._probe(began_s)
        self._steps += 1
        return total

    def _probe(self, began_s: float) -> None:
        """Note whether the device has finished right after the last launch, so that it has waited for the launches."""
        is_reached, launched_s = self._record(), time.perf_counter()
        until_s = launched_s + 0.05 * (launched_s - began_s)
        while not is_reached() and time.perf_counter() < until_s:
            pass
        self._launch_bound += is_reached()
        if self._steps == _PROBED_STEPS[-1] and self._launch_bound > 0.9 * len(_PROBED_STEPS):
            _log.warning(
                "the GPU waits for the CPU, which takes %.1f ms to launch the operations of a step: "
                "run.step(..., capture=True) launches them all at once",
                1000 * (launched_s - began_s),
            )


def check_capturable(
    loss_fn: LossFn | None, optimizer: Optimizer, device: torch.device, *, accumulate: int, batch_norm: str
) -> None:
    """Raise ValueError for options, and on a device with graphs for optimizers, that a graph cannot execute."""
    if loss_fn is None:
        raise ValueError("capture=True needs a loss_fn; a loop over step.shards(batch) runs in Python at every step")
    if accumulate != 1:
        raise ValueError(f"capture=True needs accumulate=1, got {accumulate}: a graph ends with an update")
    if batch_norm == "global":
        raise ValueError("capture=True needs batch_norm='shard': 'global' exchanges statistics in the forward pass")
    if device.type in GRAPHS and any(group.get("capturable") is False for group in optimizer.param_groups):
        name = type(optimizer).__name__
        raise ValueError(
            f"capture=True needs an optimizer whose state is on the device.\n"
            f"  wrong:  torch.optim.{name}(model.parameters())\n"
            f"  right:  torch.optim.{name}(model.parameters(), capturable=run.device.type == 'cuda')"
        )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"the step cannot be captured as a CUDA graph: {type(error).__name__}: {error}\n"
            f"It must not wait for the device, and its shapes must not depend on values.\n"
            f"  wrong:  if loss.item() > 1: ...            .cpu(), print(tensor), x[x > 0], torch.nonzero(x)\n"
            f"  right:  torch.where(loss > 1, ..., ...)    torch.where(x > 0, x, 0)\n"
            f"  right:  run.step(..., capture=False)"
        ) from error


def _fresh(node: Node[Partial]) -> Node[Partial]:
    """Return the node with lists of its own, which an addition may change."""
    value = node.value
    if value is None:
        return node
    return Node(node.start, node.stop, replace(value, grads=list(value.grads), buffers=dict(value.buffers)))


def _structure(content: Content) -> Hashable:
    """Return shapes and types of a tree of tensors. Raises TypeError for other values."""
    if isinstance(content, Tensor):
        return tuple(content.shape), content.dtype
    if isinstance(content, Mapping):
        return tuple((name, _structure(value)) for name, value in content.items())
    if isinstance(content, list | tuple):
        return tuple(map(_structure, content))
    if content is None:  # a shard without samples
        return None
    raise TypeError(
        f"capture=True needs batches of tensors, and this one holds a {type(content).__name__}. Make a tensor of it in "
        f"collate_fn="
    )


def _copied(content: Content) -> Content:
    if isinstance(content, Tensor):
        return content.clone()
    if isinstance(content, Mapping):
        return {name: _copied(value) for name, value in content.items()}
    return None if content is None else tuple(map(_copied, content))
