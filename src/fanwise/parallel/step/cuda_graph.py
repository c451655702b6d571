"""`run.step(..., capture=True)`: a whole training step as one CUDA graph.

    first step of a kind    runs without a graph: allocates the state of the optimizer, initializes libraries
    second                  runs without a graph; then is captured, and replayed from the same state, with equal bits
    4th, 8th, 16th, ...     as the second, but with the graph that exists
    others                  replayed

Steps are of one kind if their batches have the same shapes, and the optimizer has the same settings and trains the same
parameters. Inside the graph, the batch is gathered from a data set on the device, or read from fixed memory, to which
each batch is copied. The shards run on streams of their own.

Python code of the model and of the optimizer runs only while a step is captured. If a later step would take another
branch, or draw numbers from Python or NumPy, the graph repeats the captured step instead. The comparisons detect that.

A step of several processes, or with a scaled loss, is two graphs. Between them the processes exchange gradients, or
check whether the scaled gradients are finite.
"""

import copy
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, is_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...tensor.random.keys import Key
from ..data.batch import Batch, Content
from ..rng import isolated_generators, seed_generators
from ..validation.fingerprints import have_same_bits
from .batch_execution import TrainStages
from .gradients import Partial, add
from .loss_scale import are_finite
from .replicas import LossFn, ShardWork, add_shard_note
from .tree import Node, TreeSum

T = TypeVar("T")

_log = logging.getLogger(__name__)
_cuda: Any = torch.cuda  # parts of it have no annotations

_MAX_GRAPHS = 8


class CudaGraph:
    """Operations of a CUDA device that are captured once and then replayed."""

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
        """Capture the operations that `body` launches. Nothing is executed. Return its result."""
        # Other threads, for example of a DataLoader, may use the device during the capture.
        with (
            torch.cuda.device(self._main.device),
            torch.cuda.graph(self._graph, stream=self._main, capture_error_mode="thread_local"),
        ):
            return body()

    @contextmanager
    def branch(self, number: int) -> Iterator[None]:
        """Capture the block on the stream of a branch, with the random numbers of that branch."""
        stream, before = self._streams[number], self._default.graphsafe_get_state()
        stream.wait_stream(self._main)
        self._default.graphsafe_set_state(self._generators[number])
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            self._default.graphsafe_set_state(before)

    def join(self) -> None:
        """Let the operations that follow wait for all branches."""
        for stream in self._streams:
            self._main.wait_stream(stream)

    def seed(self, number: int, key: Key) -> None:
        """Seed the random numbers of a branch for the next replay."""
        self._generators[number].manual_seed(key.words[0])

    def replay(self) -> None:
        self._graph.replay()


# The graphs of each type of device, called with device and number of branches. Tests add a simulated device.
GRAPHS: dict[str, Callable[[torch.device, int], Any]] = {"cuda": CudaGraph}


@dataclass(slots=True)
class _Kind:
    """The steps of one kind so far. `captured`: None until the second one."""

    uses: int = 0
    captured: "_CapturedStep | None" = None


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Copies of everything that a step changes."""

    tensors: dict[str, Tensor]
    counts: dict[str, Any]
    updates: int


class StepGraphs:
    def __init__(self, stages: TrainStages, optimizer: Optimizer) -> None:
        self._stages = stages
        self._execution = stages.execution
        self._optimizer = optimizer
        self._kinds: dict[Hashable, _Kind] = {}  # the last used one is last
        self._has_warned = False
        replica = stages.execution.replica
        self._params = replica.params
        self._modules = [part for module in replica.modules.values() for part in module.modules()]
        # Loading replaces the tensors that graphs have captured.
        optimizer.register_load_state_dict_post_hook(lambda _: self._kinds.clear())

    def train(self, batch: Batch) -> Partial:
        inputs = _Inputs(batch, self._execution.own_shards(batch))
        key = (inputs.kind, self._settings())
        kind = self._kinds[key] = self._kinds.pop(key, _Kind())
        kind.uses += 1
        if kind.uses == 1:
            if len(self._kinds) > _MAX_GRAPHS:
                del self._kinds[next(iter(self._kinds))]
                self._warn_of_many_kinds()
            total = self._stages.train(batch)
            self._execution.replica.buffers.note_changes()
            return total
        if kind.captured is None or kind.uses & (kind.uses - 1) == 0:
            return self._train_both_ways(kind, batch, inputs)
        return kind.captured.train(batch, inputs)

    def _settings(self) -> Hashable:
        """Return the settings that are constants in a graph. Values of tensors, such as learning rates, may change."""
        options = tuple(
            (name, id(value) if isinstance(value, Tensor) else repr(value))
            for group in self._optimizer.param_groups
            for name, value in group.items()
            if name != "params"
        )
        params = tuple((param.data_ptr(), param.requires_grad) for param in self._params)
        return options, params, tuple(module.training for module in self._modules)

    def _warn_of_many_kinds(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "capture=True: this step has seen more than %d combinations of batch shapes and optimizer settings, so "
                "most of its steps run without a graph. Use batches of one size. If the learning rate changes in every "
                "step, pass it as a tensor: AdamW(params, lr=torch.tensor(1e-3, device=run.device), capturable=True)",
                _MAX_GRAPHS,
            )

    def _train_both_ways(self, kind: _Kind, batch: Batch, inputs: "_Inputs") -> Partial:
        """Execute the step without the graph, restore the state, and replay the graph. Both must have equal bits."""
        before = self._snapshot()
        total = self._stages.train(batch)
        expected = self._snapshot()
        if expected.tensors.keys() != before.tensors.keys():  # the step has initialized more state of the optimizer
            return total
        self._restore(before)
        if kind.captured is None:
            kind.captured = _CapturedStep(self._stages, self._optimizer, batch, inputs)
        result = kind.captured.train(batch, inputs)
        pairs = [(name, tensor, expected.tensors[name]) for name, tensor in self._tensors().items()]
        pairs.append(("the loss", result.loss, total.loss))
        different = next((name for name, one, other in pairs if not have_same_bits(one, other)), None)
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

    def _snapshot(self) -> _Snapshot:
        tensors = {name: tensor.detach().clone() for name, tensor in self._tensors().items()}
        return _Snapshot(tensors, self._execution.state_dict(), self._stages.updates)

    def _restore(self, snapshot: _Snapshot) -> None:
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(snapshot.tensors[name])
        self._execution.load_state_dict(snapshot.counts)
        self._stages.updates = snapshot.updates

    def _tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        names: dict[Tensor, str] = {}
        for prefix, module in self._execution.replica.modules.items():
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
    """The inputs of a graph: indices of rows in a data set on the device, or the content of each shard of this process.

    `kind` is equal for inputs that one graph can read.
    """

    def __init__(self, batch: Batch, own_shards: range) -> None:
        self._sizes = batch.sizes
        self._rows = batch.rows
        self._contents: dict[int, Content] = {}
        self._tensors: list[Tensor] = []
        if batch.rows is not None:
            self._tensors = [batch.rows.indices]
            self.kind: Hashable = (batch.sizes, tuple(tensor.data_ptr() for tensor in batch.rows.tensors))
            return
        self._contents = {index: batch.shard(index) for index in own_shards if batch.sizes[index]}
        self._tensors, self._structure = tree_flatten(self._contents)
        for value in self._tensors:
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"capture=True needs batches of tensors, and this one holds a {type(value).__name__}. Convert it "
                    f"to a tensor in collate_fn="
                )
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in self._tensors)
        self.kind = (batch.sizes, self._structure, shapes)

    def copy(self) -> "_Inputs":
        """Return equal inputs in memory of their own."""
        inputs = copy.copy(self)
        inputs._tensors = [tensor.clone() for tensor in self._tensors]
        if self._rows is None:
            inputs._contents = tree_unflatten(inputs._tensors, self._structure)
        else:
            inputs._rows = self._rows._replace(indices=inputs._tensors[0])
        return inputs

    def load(self, inputs: "_Inputs") -> None:
        torch._foreach_copy_(self._tensors, inputs._tensors)

    def shard(self, index: int) -> Content:
        if self._rows is None:
            return self._contents[index]
        start = sum(self._sizes[:index])
        return self._rows.content(range(start, start + self._sizes[index]))


class _CapturedStep:
    """A step that was captured, for batches of one kind."""

    def __init__(self, stages: TrainStages, optimizer: Optimizer, batch: Batch, inputs: _Inputs) -> None:
        execution = stages.execution
        # The graph reads these tensors even if the program replaces them, so keep them alive.
        self._options = [value for group in optimizer.param_groups for value in group.values() if is_tensor(value)]
        self._stages = stages
        self._execution = execution
        self._replica = execution.replica
        self._inputs = inputs.copy()
        self._own = execution.own_shards(batch)
        self._shards = [index for index in self._own if batch.sizes[index]]
        is_scaled = execution.loss_scale is not None
        self._factor = torch.ones((), device=self._replica.device) if is_scaled else None
        self._sizes = batch.sizes
        self._is_one_graph = execution.team.size == 1 and not is_scaled
        self._graph = self._new_graph(len(self._shards))
        self._update_graph: Any = None
        self._has_updated = False
        self._grads: list[Tensor | None] = []
        self._nodes: list[Node[Partial]] = []
        self._total: Partial | None = None
        self._memory: list[Partial | None] = []
        self._grad_norm: Tensor | None = None
        self._capture(batch)

    def _new_graph(self, branches: int) -> Any:
        return GRAPHS[self._replica.device.type](self._replica.device, branches)

    def train(self, batch: Batch, inputs: _Inputs) -> Partial:
        if self._is_one_graph:
            self._replay(batch, inputs)
            assert self._total is not None, "the step was captured"
            total = replace(self._total)
            self._execution.record(batch, total)
            self._stages.updates += 1
        else:
            total = self._replay_and_reduce(batch, inputs)
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

    def _replay_and_reduce(self, batch: Batch, inputs: _Inputs) -> Partial:
        execution = self._execution
        with execution.team.attempt(), execution.transaction():  # a lost GPU process ends the run, so no repetition
            self._replay(batch, inputs)
            total = execution.reduce([_copy_node(node) for node in self._nodes], batch, mean=True)
            execution.gather(total, mean=True)
        return total

    def _update(self, grads: Sequence[Tensor | None]) -> None:
        """Replay clipping and update. The first time they run without a graph, and initialize the optimizer."""
        if not self._has_updated:
            self._has_updated = True
            self._stages.clip_and_step(grads)
            self._grad_norm = self._stages.grad_norm
            return
        present = [grad for grad in grads if grad is not None]
        if self._update_graph is None:
            self._grads = [None if grad is None else torch.empty_like(grad) for grad in grads]
            self._update_graph = self._new_graph(0)
            with _explain_errors():
                self._update_graph.capture(self._clip_and_step)
        torch._foreach_copy_([grad for grad in self._grads if grad is not None], present)
        self._update_graph.replay()

    def _capture(self, batch: Batch) -> None:
        with _explain_errors(), isolated_generators():
            if self._is_one_graph:
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
        with self._execution.shard_context(generators=()):
            nodes = [self._shard(index) for index in self._own]
            self._graph.join()
        # Keep this memory, so that no branch reuses it while the main stream computes the sum.
        self._memory = [node.value for node in nodes]
        tree: TreeSum[Partial] = TreeSum(len(self._sizes), add)
        for node in nodes:
            tree.put(_copy_node(node))
        return tree.nodes

    def _shard(self, index: int) -> Node[Partial]:
        if index not in self._shards:
            return Node(index, index + 1, None)
        factor = 1.0 if self._factor is None else self._factor
        work = ShardWork(index, self._inputs.shard, self._sizes[index], False, factor)
        seed_generators(self._execution.key.fold_in(index), self._replica.generators[:1])
        with self._graph.branch(self._shards.index(index)), add_shard_note(work, len(self._sizes)):
            return Node(index, index + 1, self._replica.differentiate_concurrently(work))

    def _clip_and_step(self) -> None:
        self._stages.clip_and_step(self._grads)
        self._grad_norm = self._stages.grad_norm


def check_capturable(loss_fn: LossFn | None, optimizer: Optimizer, device: torch.device, *, batch_norm: str) -> None:
    """Raise ValueError for options that a graph cannot execute, and on a device with graphs also for optimizers."""
    if loss_fn is None:
        raise ValueError("capture=True needs a loss_fn: a loop over step.shards(batch) runs Python code in every step")
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
def _explain_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"the step cannot be captured as a CUDA graph: {type(error).__name__}: {error}\n"
            f"A step must not wait for the device, and its shapes must not depend on values.\n"
            f"  wrong:  if loss.item() > 1: ...            .cpu(), print(tensor), x[x > 0], torch.nonzero(x)\n"
            f"  right:  torch.where(loss > 1, ..., ...)    torch.where(x > 0, x, 0)\n"
            f"  right:  run.step(..., capture=False)"
        ) from error


def _copy_node(node: Node[Partial]) -> Node[Partial]:
    value = node.value
    if value is None:
        return node
    return Node(node.start, node.stop, replace(value, grads=list(value.grads), buffers=dict(value.buffers)))
