"""`Run`: what a training function gets, on one device or many. It holds the parts together and decides nothing itself.

    train(run):  run.step     step/           run.epochs, run.batches   data/
                 run.mean     evaluation.py   run.save, run.restore     checkpoints/
                 run.gather   ranks.py        run.report                the report of the current job of a pool

Model, optimizer and what `run.keep` registers get what a checkpoint holds of them when they are registered, so
`resume=` needs no line in the training function.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from ..base.errors import TrialStopped
from ..pool.reporting import plain_metrics
from . import evaluation, ranks
from .batch_norm import BatchNorm, GlobalNormDevice, check_batch_norm
from .checkpoint import file as checkpoint_file
from .checkpoint.file import Writer, take_snapshot
from .checkpoint.location import StrPath, is_in_process_memory, location_of
from .checkpoint.state import RunState
from .checks import misuse
from .checks.checking import (
    check_model,
    check_optimizer,
    check_own_loop,
    check_precision,
    check_same,
    check_step,
    whole_number,
)
from .checks.verifying import Verifier
from .config import Plan
from .data.batch import Batch
from .data.dataset import Collate, Data, PassReader, reader_of
from .data.loader import (
    InitFn,
    LoaderOptions,
    Loaders,
    ShardFetch,
    cut_range,
    iterate_batches,
    settings_of,
)
from .data.stream import StreamRequest, iterate_stream
from .optim.step_optimizer import StepOptimizer, StepOptimizers
from .progress import NoScreen, ProgressLine, Screen
from .replica.replicas import Device, LocalDevice, LossFn, Replica
from .rng import generators_of
from .shards import assign
from .step.batch_execution import BatchExecution, ShardLoopGuard
from .step.cuda_graph import GRAPHS, StepGraphs, check_capturable
from .step.loss_scale import LossScale
from .step.manual_step import ManualStep
from .step.train_step import Step
from .teams.team import Alone, Stateful, Sums, Team

_log = logging.getLogger(__name__)

P = TypeVar("P", bound=StrPath)


class Run:
    """One training. Made by `fanwise.run` and `fanwise.here`.

    Attributes:
        device: where the model has to be; batches come there by themselves. devices: all of this process.
        rows: what was reported, oldest first.
    """

    def __init__(
        self,
        plan: Plan,
        devices: tuple[torch.device, ...],
        *,
        team: Team | None = None,
        fixed: frozenset[str] = frozenset(),
        names: Callable[[], Sequence[str]] | None = None,
        verify: int = 0,
        spare_cpus: int | None = None,
    ) -> None:
        self._team: Team = Alone() if team is None else team
        self.devices = devices
        self.device = devices[0]
        self._plan = plan
        self._state = RunState(plan, fixed, self.device)
        self.rows = self._state.rows
        self._steps: list[Step | ManualStep] = []
        self._loop = ShardLoopGuard()
        self._replicas: list[Replica] = []  # of steps
        self._placements = StepOptimizers()
        self._step_sums: dict[StepOptimizer, Sums] = {}  # of steps
        self.writer = Writer(self._team.set_writing)
        self._line = ProgressLine(NoScreen())
        self._verify = verify  # batches between two times that processes compare everything
        self._loaders = Loaders(self.device, spare_cpus)
        self._names = names  # of the devices of all processes, where there are others

    @contextmanager
    def show_progress(self, screen: Screen, name: str) -> Iterator[None]:
        """Its progress is shown on this screen while the block lasts; `name` is that of the training function."""
        self._line = ProgressLine(screen, name=name, devices=self._device_names)
        with closing(self._line):
            yield

    @contextmanager
    def training(self) -> Iterator[None]:
        """The training function runs in this block: what it does beside the run is said, or refused.

        Workers that read for it are gone after it.
        """
        with (
            closing(self._loaders),
            misuse.watched(
                self._placements.__contains__,
                lambda params: any(id(param) in each.dropped for each in self._replicas for param in params),
            ),
        ):
            yield
            for step in self._steps:
                step.check_end()

    def _device_names(self) -> list[str]:
        if self._names is not None:
            return list(self._names())
        return [str(device) for device in self.devices] * self._team.size

    @property
    def rank(self) -> int:
        """Of this process among those that take part now, from 0. For what is printed or written, not for data."""
        return self._team.place

    @property
    def world_size(self) -> int:
        """How many processes take part now. What a training makes from it is another training on other devices."""
        return self._team.size

    @property
    def shards(self) -> int:
        """Logical shards of each global batch."""
        return self._plan.shards

    @property
    def threads(self) -> int:
        """Threads of each device."""
        return self._plan.threads

    @property
    def seed(self) -> int:
        """What order, augmentation and dropout are drawn from."""
        return self._plan.seed

    @property
    def executions(self) -> int:
        """Shards executed so far by all steps."""
        return sum(step.executions for step in self._steps)

    @overload
    def step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFn,
        *,
        clip_norm: float | None = None,
        accumulate: int = 1,
        autocast: torch.dtype | None = None,
        loss_scale: LossScale | None = None,
        batch_norm: BatchNorm = "shard",
        mean_buffers: Sequence[str] = (),
        also: Sequence[nn.Module] = (),
        capture: bool = False,
    ) -> Step: ...

    @overload
    def step(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        loss_scale: LossScale | None = None,
        mean_buffers: Sequence[str] = (),
        also: Sequence[nn.Module] = (),
    ) -> ManualStep: ...

    def step(
        self,
        model: Any,
        optimizer: Any,
        loss_fn: LossFn | None = None,
        *,
        clip_norm: float | None = None,
        accumulate: int = 1,
        autocast: torch.dtype | None = None,
        loss_scale: LossScale | None = None,
        batch_norm: BatchNorm = "shard",
        mean_buffers: Sequence[str] = (),
        also: Sequence[nn.Module] = (),
        capture: bool = False,
    ) -> Step | ManualStep:
        """Return the step of a training: call it with each batch.

        The loss must be a function of the model and the batch, so that it does not matter which device executes which
        shard: its modules are parts of the model or named in `also`, its random numbers come from the global functions
        of torch, numpy or `random`, and what it leaves in closures, globals or attributes of modules does not change
        later losses. In the first batch, and with `verify=`, a shard is executed twice and must have equal gradients.

        Without `loss_fn` the loop over the shards of a batch is the program's own, for what needs its own backward: see
        `ManualStep`.

        Args:
            model: on `run.device`, without a wrapper. Make it in the training function: one from outside is trained in
                place on one device, and copied to each of several processes.
            optimizer: of its parameters. Without `loss_fn` also several models and optimizers: one loop then has the
                gradients of all models, and one update calls all optimizers.
            loss_fn: called as `loss_fn(model, *batch)` for each shard. Returns one loss per sample (or more, first axis
                the sample), or `(losses, counts)`, or one mean. The gradient is that of the sum of all losses over the
                sum of all counts of the global batch. Each shard is seeded by itself.
            clip_norm: the gradient of the whole batch is scaled down to this 2-norm; `step.grad_norm` is the norm
                before that. math.inf only measures it.
            accumulate: batches per update. The last batch of a pass of `run.batches` always ends with one.
            autocast: torch.bfloat16 or torch.float16 for mixed precision. float16 differentiates a scaled loss, and
                leaves an update out when a gradient is not finite.
            loss_scale: of float16, with other settings than those of `LossScale()`. Without `loss_fn` it scales the
                losses that `step.backward` is given.
            batch_norm: "shard" normalizes each shard with its own statistics. "global" uses the statistics of the whole
                batch in the forward and the backward pass, like SyncBatchNorm. It needs one shard per process
                (`shards="devices"`), and exchanges statistics twice per layer.
            mean_buffers: names of buffers that become the mean over the shards, besides those of batch normalization.
                Others must be the same after every shard.
            also: modules that the loss calls besides the model, such as a teacher. Their buffers are kept as those
                of the model. Models of other steps of the run are known.
            capture: execute the step as one CUDA graph, with the same bits. On a GPU this is several times as fast for
                models whose operations are short. The model must not wait for the device and has no shapes that depend
                on values. Its Python code runs only while a graph is captured: for each size of batch and each setting
                of the optimizer. Before, and at powers of two, a step runs both ways and is compared. Optimizers need
                `capturable=True` where torch has it. It has no effect on CPUs.

        Raises:
            TypeError: `model` is no torch.nn.Module.
            ValueError: a parameter is elsewhere, not the model's, or not made yet; a model in a wrapper; an optimizer
                that calls the loss itself; `clip_norm` or `accumulate` not positive; a `loss_scale` without float16; an
                unknown `batch_norm`, or "global" for a compiled model or without one shard per process; without
                `loss_fn` an option that only a step with one has.
        """
        self._loop.check("run.step")
        if loss_fn is not None and isinstance(model, list | tuple) and any(isinstance(m, nn.Module) for m in model):
            raise TypeError(
                "run.step got several models and a loss function, which is called with one model.\n"
                "  wrong:  run.step([encoder, head], [sgd, adam], loss_fn)\n"
                "  right:  run.step([encoder, head], [sgd, adam])          # and a loop over step.shards(batch)\n"
                "  right:  run.step(nn.ModuleList([encoder, head]), optimizer, loss_fn)"
            )
        # Several are for loops of the program's own; what is no model or optimizer is refused below.
        models: list[Any] = _several(model) if loss_fn is None else [model]
        optimizers: list[Any] = _several(optimizer) if loss_fn is None else [optimizer]
        if loss_fn is None:
            check_own_loop(
                models, optimizers, clip_norm=clip_norm, accumulate=accumulate, autocast=autocast, batch_norm=batch_norm
            )
        whole = models[0] if len(models) == 1 else nn.ModuleList(models)
        check_model(whole, self.device)
        for each in optimizers:
            check_optimizer(each, whole, has_closure=loss_fn is None)
        in_float16 = autocast is torch.float16 or (loss_fn is None and loss_scale is not None)
        check_precision(torch.float16 if in_float16 else autocast, loss_scale, whole)
        check_batch_norm(batch_norm, whole, shards=self.shards, processes=self._team.size)
        check_step(clip_norm, accumulate)
        captures = capture and self.device.type in GRAPHS
        if capture:
            check_capturable(loss_fn, optimizers[0], accumulate=accumulate, batch_norm=batch_norm)
        for part in models:
            self._state.register("model", part)
        for each in optimizers:
            self._state.register("optimizer", each)
        replica = Replica(whole, loss_fn, also=also, autocast=autocast, mean_buffers=mean_buffers, device=self.device)
        number = len(self._steps)
        for other, known in enumerate(self._replicas):  # a GAN has two steps, whose losses call both models
            known.add_modules({f"the model of step {number}": whole})
            replica.add_modules({f"the model of step {other}": known.model})
        check_same(self._team, replica.modules)
        scale = (loss_scale or LossScale()) if in_float16 else None
        in_parts = loss_fn is not None and accumulate == 1 and clip_norm is None and not scale
        placements = [self._placements.of(replica.params, each, in_parts=in_parts) for each in optimizers]
        if placements[0] not in self._step_sums:
            self._step_sums[placements[0]] = self._team.sums(replica.params, placements[0])
        execution = BatchExecution(
            self._plan,
            replica,
            optimizers,
            self._team,
            self._step_sums[placements[0]],
            number=number,
            line=self._line,
            verifier=Verifier(
                self._team, replica, optimizers, number=number, every=self._verify, repeats=batch_norm == "shard"
            ),
            guard=self._loop,
            loss_scale=scale,
        )
        made: Step | ManualStep
        if loss_fn is None:
            made = ManualStep(execution, placements)
        else:
            local: list[Device] = (
                [GlobalNormDevice(replica, self._team)]
                if batch_norm == "global"
                else [LocalDevice(replica) for _ in self.devices]
            )
            made = Step(
                execution,
                placements[0],
                local,
                clip_norm=clip_norm,
                accumulate=accumulate,
                graphs=(lambda step: StepGraphs(step, execution, optimizers[0])) if captures else None,
            )
        self._steps.append(made)
        self._replicas.append(replica)
        self._state.register("step", made)
        return made

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers 0 to `count - 1`; after a resume, those that are left. Raises ValueError if negative."""
        return self._epochs(whole_number("the number of epochs", count, least=0))

    def _epochs(self, count: int) -> Iterator[int]:
        for epoch in self._plan.position.epochs(count):
            self._state.reach(in_pass=False)
            self._line.epoch(epoch, count)
            yield epoch

    def batches(
        self,
        data: Data,
        batch_size: int | None = None,
        *,
        shuffle: bool | None = None,
        drop_last: bool = False,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool | None = None,
        persistent_workers: bool = False,
        timeout: float = 0,
        worker_init_fn: InitFn | None = None,
    ) -> Iterator[Batch]:
        """Global batches of a data set, each sample once, in an order drawn from (seed, epoch).

        The arguments are those of torch's DataLoader, and mean the same. Nothing of the result depends on who reads.

        Args:
            data: a tuple of tensors or NumPy arrays, or a TensorDataset (fast: one indexing a shard, without workers),
                or any data set with `len(data)` and `data[index]`, whose samples are collated by `collate_fn`, shard by
                shard. Or an IterableDataset, in its own order, which every process that reads iterates as a whole;
                each time it has to give the same samples. Or a DataLoader, whose data set and arguments are taken,
                where it has no sampler of its own.
            batch_size: samples of the global batch, over all devices.
            shuffle: True by default, but for an IterableDataset; if not, in the order of the data set.
            drop_last: leave out a last batch that is not full.
            num_workers: processes of torch's DataLoader that read ahead of the steps, for each process of the run; 0:
                samples are read in the step. In a job there are no more than its lease has CPUs beside those that
                train. An IterableDataset is read by one worker at most.
            prefetch_factor: 2 by default; num_workers * prefetch_factor batches are read ahead. A process reads its own
                shards of them.
            pin_memory: to a GPU by way of pinned memory, ahead of the step; False: without.
            persistent_workers: they are there for the next pass over the same data set, as they are; else each pass
                begins with new ones, which see what the program has changed in the data set.
            timeout: seconds that the loop waits for a batch; 0: without a limit.
            worker_init_fn: called with the number of the worker, in each, before it reads.

        After a resume it goes on with the first sample that no step has used; an IterableDataset from its own state,
        if it or its iterator has state_dict and load_state_dict, and else by reading what comes before once more.

        What the data set raises is raised by the step, or by the loop if a worker has read it, with the index of the
        sample. A worker that dies ends the loop with an error of torch.

        Raises:
            TypeError: the data set cannot be indexed, or an argument of DataLoader that has no meaning here.
            ValueError: `batch_size` below 1, no samples, or another length than when the checkpoint was made, or the
                pass began; a DataLoader with an order of its own.
        """
        options = LoaderOptions(
            collate_fn, num_workers, prefetch_factor, pin_memory, persistent_workers, timeout, worker_init_fn
        )
        if isinstance(data, DataLoader):
            if (batch_size, shuffle, drop_last, options) != (None, None, False, LoaderOptions()):
                raise ValueError("run.batches(loader) takes all options from the DataLoader: do not pass others")
            settings = settings_of(data)
            data, options = settings.data, settings.options
            batch_size, shuffle, drop_last = settings.batch_size, settings.shuffle, settings.drop_last
        elif batch_size is None:
            raise TypeError("run.batches(data, batch_size): batch_size is missing")
        size = whole_number("batch_size", batch_size, least=1)
        batches: Any = self._stream if isinstance(data, IterableDataset) else self._batches
        return self._reaching(batches(data, size, shuffle, drop_last, options))

    def _batches(
        self, data: Any, size: int, shuffle: bool | None, drop_last: bool, options: LoaderOptions
    ) -> Iterator[Batch]:
        reader = self._loaders.tried(reader_of(data, options.collate_fn), data)
        length = len(reader)
        started = self._plan.position.begin_pass(length)
        self._line.begin_pass(length, length if started.is_finished else started.done)
        first, shards = started.done, self.shards

        def requests() -> Iterator[dict[int, range]]:
            for start in range(first, length, size):
                if (batch := started.range_at(start, size, drop_last)) is not None:
                    ranges = cut_range(batch, shards)
                    yield {shard: ranges[shard] for shard in self._own_shards() if ranges[shard]}

        source = PassReader(
            reader, length, started.key.fold_in("reading"), started.key if shuffle is not False else None
        )
        fetch = self._loaders.fetch(source, data, requests(), options)
        return iterate_batches(started, size, shards, fetch, lambda: len(reader), drop_last=drop_last)

    def _own_shards(self) -> range:
        """Return the shards that this process executes now."""
        return assign(self.shards, self._team.size)[self._team.place]

    def _stream(
        self, data: "IterableDataset[Any]", size: int, shuffle: bool | None, drop_last: bool, options: LoaderOptions
    ) -> Iterator[Batch]:
        if shuffle or options.persistent_workers or options.num_workers > 1:
            raise ValueError(
                "an IterableDataset has its own order, is read by at most one worker, and starts in a new worker in "
                "each pass: shuffle, persistent_workers and num_workers above 1 are not supported.\n"
                "To shuffle, draw global random numbers in its __iter__: they are derived from (seed, epoch)."
            )
        started = self._plan.position.begin_pass(None)
        self._line.begin_pass(None, started.done)
        first, num_shards = started.done, self.shards

        def shards_of(number: int, shards: tuple[int, ...]) -> StreamRequest:
            return StreamRequest(first + number * size, size, drop_last, num_shards, shards)

        fetch = self._loaders.fetch_stream(data, started, shards_of, self._own_shards, options)
        return iterate_stream(started, num_shards, fetch, size=size, drop_last=drop_last)

    def _reaching(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._state.reach(in_pass=True)
            yield batch

    def mean(
        self,
        fn: evaluation.Measure,
        model: nn.Module,
        data: Data,
        *,
        batch_size: int = 1024,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool | None = None,
        persistent_workers: bool = False,
        timeout: float = 0,
        worker_init_fn: InitFn | None = None,
    ) -> float:
        """The mean of a measure over a data set: each sample once, in evaluation mode, without gradients.

        Args:
            fn: called as `fn(model, *batch)`; returns one value for each sample, such as whether it is right, or
                `(values, counts)`, whose sums are divided. Integers and booleans are counted exactly.
            batch_size: samples at a time; the last bits of a mean of floats depend on it, on nothing else.
            num_workers, ...: as those of `batches`.

        >>> run = here(); model = torch.nn.Linear(2, 2)
        >>> x, y = torch.eye(2), torch.tensor([0, 1])
        >>> accuracy = run.mean(lambda m, x, y: m(x).argmax(1) == y, model, (x, y))
        """
        options = LoaderOptions(
            collate_fn, num_workers, prefetch_factor, pin_memory, persistent_workers, timeout, worker_init_fn
        )
        return evaluation.mean(*self._sums(fn, model, data, batch_size, options))

    def sum(
        self,
        fn: evaluation.Measure,
        model: nn.Module,
        data: Data,
        *,
        batch_size: int = 1024,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool | None = None,
        persistent_workers: bool = False,
        timeout: float = 0,
        worker_init_fn: InitFn | None = None,
    ) -> float:
        """As `mean`, not divided: how many are right, the summed losses. An int where the values are."""
        options = LoaderOptions(
            collate_fn, num_workers, prefetch_factor, pin_memory, persistent_workers, timeout, worker_init_fn
        )
        return self._sums(fn, model, data, batch_size, options)[0]

    def _sums(
        self, fn: evaluation.Measure, model: nn.Module, data: Data, batch_size: int, options: LoaderOptions
    ) -> tuple[float, float]:
        self._loop.check("run.mean or run.sum")
        size = whole_number("batch_size", batch_size, least=1)
        check_model(model, self.device)
        reader = reader_of(data, options.collate_fn)
        key, length = self._plan.key("mean"), len(reader)
        chunks = [range(start, min(start + size, length)) for start in range(0, length, size)]

        def fetch(own: range) -> ShardFetch:
            requests = [{0: chunks[number]} for number in own]
            return self._loaders.fetch(PassReader(reader, length, key, None), data, requests, options)

        return evaluation.sums(
            fn,
            model,
            chunks,
            fetch,
            key=key,
            team=self._team,
            generators=generators_of(self.device),
            watch=self._line.measured,
        )

    def gather(self, value: Any) -> list[Any]:  # Any: what can be pickled, or a function that returns it
        """Copies of what each process gives, by rank, in every process; tensors in main memory.

        For what must not depend on the number of processes see `mean`.

        Args:
            value: anything that can be pickled. A function is called for it, and again, when `run.rank` and
                `run.world_size` have become others because a process was lost meanwhile; another value is given again
                as it is, and what the lost one had is missing.

        Blocks until all have come here.

        >>> here().gather(lambda: 7)
        [7]
        """
        self._loop.check("run.gather")
        return ranks.gather(self._team, "gathers", value)

    def all_reduce(self, tensor: Tensor | Callable[[], Tensor], op: ranks.Op = "sum") -> Tensor:
        """The sum, mean, minimum or maximum over the processes, element by element, in every process: a new tensor.

        Added in one order, along a tree over the ranks, so the bits repeat; on another number of processes they are
        others. The tensors are pickled: for measures, not for gradients.

        Args:
            tensor: of the same type and shape in all, or a function that returns it; see `gather`.
            op: "sum", "mean", "min" or "max".

        Raises:
            TypeError: no tensor, integers with "mean", or a type that torch cannot add or compare.
            ValueError: other shapes or types; an unknown `op`.

        Blocks until all have come here.

        >>> here().all_reduce(torch.tensor([1, 2]))
        tensor([1, 2])
        """
        self._loop.check("run.all_reduce")
        return ranks.all_reduce(self._team, tensor, op)

    def barrier(self) -> None:
        """Block until all processes have come here."""
        self._loop.check("run.barrier")
        ranks.gather(self._team, "waits at a barrier", None)

    def report(self, **metrics: Any) -> None:  # Any: scalars of any library
        """Report values once for the whole run; they are kept in `run.rows`.

        In a trial this is `fanwise.tune.report`: it blocks until the tuner has decided.

        Raises:
            TrialStopped: the trial is to end.
            TypeError: a value is neither a number nor a string. ValueError: there are no values.
        """
        self._loop.check("run.report")
        values = plain_metrics(metrics)
        self.rows.append(values)
        if self._team.report(values) != "CONTINUE":
            raise TrialStopped("the tuner stopped this trial")

    def print(self, *values: object, sep: str = " ", end: str = "\n") -> None:
        """Print once for the whole run, not once a process."""
        if self.rank == 0:
            sys.stdout.write(sep.join(map(str, values)) + end)
            sys.stdout.flush()

    def keep(self, **objects: Stateful) -> None:
        """Register what else belongs to a checkpoint, as `run.keep(scheduler=scheduler)`.

        Step a learning-rate scheduler yourself, as in a plain loop: the function runs once, however many devices.

        Raises:
            TypeError: without state_dict and load_state_dict. ValueError: the name is taken.
        """
        for name, kept in objects.items():
            self._state.keep(name, kept)

    def save(self, path: P, *, wait: bool = False) -> P:
        """Write a checkpoint: the file is replaced as a whole, in the background.

        What it holds is copied before this returns. `fanwise.run` returns, and a program ends, when it is on the disk;
        an error there is raised by the next `save` or at the end. With `wait` this call blocks until then. A run that
        fails, in whichever process, waits up to 30 s for what was asked for before.

        Called after a step it holds that step; called after the loop over the batches it goes on with the next
        epoch, so save last in an epoch.

        Args:
            path: a file, or any URL that fsspec knows, as "s3://bucket/run.pt".

        Returns the path, as it was given.

        Raises:
            ValueError, NotInstalled: a URL where fsspec cannot go, or of a process's own memory in one of several.
            OSError, CheckpointError: this one, with `wait`, or an earlier one could not be written.
        """
        self._loop.check("run.save")
        place = location_of(path)
        if is_in_process_memory(place) and not isinstance(self._team, Alone):
            raise ValueError(
                f"path={path!r} is the memory of one process of this run, which is gone with it.\n"
                f"Name a file, or a URL of a place that outlives it; memory:// is for runs in the program itself."
            )
        if self._team.place == 0:
            state = self._content()
            if not wait:
                self.writer.write(place, state)
            else:  # the other way copies, to main memory: a file shall be readable where there is no GPU
                self.writer.write_now(place, state if self.device.type == "cpu" else take_snapshot(state))
        self._team.saved()
        return path

    def _content(self) -> dict[str, Any]:  # Any: numbers, tensors and state_dicts
        return self._state.content()

    def restore(self, path: StrPath, *, weights_only: bool = True) -> None:
        """Go on from a checkpoint, on any number of devices. Call it before the first epoch and batch.

        Shards, threads and seed become those of the checkpoint.

        Args:
            path: a file, or any URL that fsspec knows.
            weights_only: False loads kept objects of any type, which executes what is in the file.

        Raises:
            FileNotFoundError: there is no such file. CheckpointError: a URL whose file system refuses.
            ValueError: no checkpoint; too late; or `fanwise.run` was given other shards, threads or another seed.
        """
        if self._plan.position.has_started:
            raise ValueError("run.restore comes before the first run.epochs and run.batches of a training function")
        self._state.adopt(checkpoint_file.read(path, weights_only), path)


def _several(given: Any) -> list[Any]:  # Any: models or optimizers
    """As a list, of one as of several."""
    return list(given) if isinstance(given, Sequence) else [given]
