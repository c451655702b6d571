"""`Run`, the argument of a training function. It connects the parts of this package.

run.step                                  step/
run.epochs, run.batches                   data/
run.mean                                  evaluation.py
run.save, run.restore, run.keep           checkpoint/
run.report                                the current job of a pool
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeVar, Unpack, overload

import torch
from torch import nn
from torch.utils.data import IterableDataset, default_collate

from ..base.errors import NotSendableError
from ..links.codec import dumps_in_band, loads
from ..pool.reporting import plain_metrics
from ..pool.seeds import seed_everything
from . import evaluation
from .batch_norm import BatchNormMode, check_batch_norm, execute_globally
from .checkpoint import file as checkpoint_file
from .checkpoint.location import Location, StrPath, is_in_process_memory, location_of
from .checkpoint.state import RunState
from .comm.team import Alone, Monitor, Stateful, Team, report_together
from .config import Plan
from .data.batch import Batch
from .data.dataset import Data, PassReader, reader_of
from .data.loader import Fetch, LoaderArguments, LoaderOptions, Loaders, cut_range, iterate_batches, iterate_stream
from .data.stream import StreamReader
from .optim.sharded import StepOptimizers
from .progress import ProgressLine, RunSnapshot
from .rng import generators_of
from .step.batch_execution import BatchExecution, ShardLoopGuard, TrainStages
from .step.cuda_graph import GRAPHS, StepGraphs, check_capturable
from .step.loss_scale import LossScale
from .step.manual_step import ManualStep
from .step.replicas import Execute, LossFn, Replica
from .step.train_step import Step
from .step.tree import assign
from .validation import misuse
from .validation.arguments import (
    check_manual_step,
    check_model,
    check_optimizer,
    check_precision,
    check_whole_number,
)
from .validation.consistency import Verifier, check_same_model

P = TypeVar("P", bound=StrPath)
R = TypeVar("R")


class Run:
    """One process's handle on a training run on one or more devices. Created by `fanwise.run` and `fanwise.here`.

    Attributes:
        device: device of this process. The model must be on it, and batches are copied to it.
        rows: values of all calls of `report`, oldest first.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        *,
        team: Team | None = None,
        monitor: Monitor | None = None,
        explicit_settings: frozenset[str] = frozenset(),  # names of the settings that the caller passed
        device_names: Callable[[], Sequence[str]] | None = None,
        verify: int = 0,
    ) -> None:
        self._team: Team = Alone() if team is None else team
        self._monitor = Monitor() if monitor is None else monitor
        self.device = device
        self._plan = plan
        self._state = RunState(plan, explicit_settings, self.device)
        self.rows = self._state.rows
        self._steps: list[Step | ManualStep] = []
        self._shard_loop_guard = ShardLoopGuard()
        self._replicas: list[Replica] = []  # by step
        self._step_optimizers = StepOptimizers()
        self._progress_line = ProgressLine()
        self._verify = verify  # number of batches between full consistency checks; 0 = first batches only
        self._loaders = Loaders(self.device)
        self._device_names = device_names or (lambda: [str(device)] * self._team.size)  # of all processes

    def execute(
        self, train: "Callable[[Run], R]", name: str, resume: StrPath | None, show: Callable[[RunSnapshot], None] | None
    ) -> R:
        """Return the result of the training function `name`. `show` is called with snapshots of the progress."""
        seed_everything(self.seed)
        if resume is not None:
            self.restore(resume)
        self._progress_line = ProgressLine(show, name=name, devices=self._device_names)
        watching = misuse.watch_updates(self._step_optimizers.__contains__)
        with closing(self._progress_line), closing(self._loaders), watching:
            result = train(self)
            for step in self._steps:
                step.check_end()
            return result

    @property
    def rank(self) -> int:
        """Index of this process among the processes of the run, from 0. Use it for output, not for data.

        It decreases when a process with a lower rank is lost.
        """
        return self._team.index

    @property
    def world_size(self) -> int:
        """Number of processes. Do not compute hyperparameters from it: the result would depend on the devices."""
        return self._team.size

    @property
    def shards(self) -> int:
        """Number of shards of each global batch."""
        return self._plan.shards

    @property
    def threads(self) -> int:
        """Number of torch CPU threads in each process."""
        return self._plan.threads

    @property
    def seed(self) -> int:
        """Seed of sample order, augmentation and dropout."""
        return self._plan.seed

    @property
    def executions(self) -> int:
        """Number of shards executed so far, over all steps and all processes."""
        return sum(step.executions for step in self._steps)

    @overload
    def step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFn,
        *,
        clip_norm: float | None = None,
        autocast: torch.dtype | None = None,
        loss_scale: LossScale | None = None,
        batch_norm: BatchNormMode = "shard",
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
        autocast: torch.dtype | None = None,
        loss_scale: LossScale | None = None,
        batch_norm: BatchNormMode = "shard",
        mean_buffers: Sequence[str] = (),
        also: Sequence[nn.Module] = (),
        capture: bool = False,
    ) -> Step | ManualStep:
        """Create a training step. Call the returned object with each batch.

        The loss must depend only on the model and the batch, because any device may execute any shard. It may call only
        modules of the model or of `also`. It must draw random numbers from the global functions of torch, numpy or
        `random`. It must not change state that later losses read, such as closures, globals or module attributes. As a
        check, one shard of the first batch is executed twice, except with batch_norm="global".

        Without `loss_fn`, your program loops over the shards and calls backward itself. See `ManualStep`.

        Args:
            model: a model on `run.device`, without a wrapper. Without `loss_fn`, it may also be several models.
            optimizer: optimizer of the model's parameters. Without `loss_fn`, it may also be a list of optimizers.
            loss_fn: called as `loss_fn(model, *batch)` for each shard. Returns a tensor of losses whose first axis is
                the sample, or `(losses, counts)`, or a scalar mean. The gradient is that of the sum of all losses over
                the sum of all counts of the global batch. Random generators are seeded separately for each shard.
            clip_norm: the gradient of the whole batch is scaled down to this 2-norm. `step.grad_norm` is the norm
                before that. math.inf only measures the norm.
            autocast: torch.bfloat16 or torch.float16 for mixed precision. With float16, the loss is scaled before the
                backward pass, and an update is skipped if a gradient is not finite.
            loss_scale: loss scaling. With autocast=torch.float16 the default is `LossScale()`.
            batch_norm: "shard" normalizes each shard with its own statistics. "global" uses the statistics of the whole
                batch, like SyncBatchNorm. It needs one shard per process (`shards="devices"`), and performs two
                collective operations per layer.
            mean_buffers: names of buffers to average over the shards. Batch normalization statistics are always
                averaged. All other buffers must be the same after every shard.
            also: modules that the loss calls besides the model, such as a teacher. Models of other steps of the run
                need not be listed.
            capture: execute the step as one CUDA graph, with the same bits; see step/cuda_graph.py. The model must not
                wait for the device, nor have shapes that depend on values, and its Python code runs only while a graph
                is captured. Optimizers that have the option need `capturable=True`. On CPUs it has no effect.

        Raises:
            TypeError: `model` is not a torch.nn.Module.
            ValueError: this was called inside a loop over `run.epochs`; a parameter is on another device, or belongs to
                another model; an option has a wrong value, or cannot be combined with the others.
        """
        self._shard_loop_guard.check("run.step")
        if self._plan.position.is_in_epochs:
            raise ValueError(
                "run.step was called inside a loop over run.epochs. A resumed run skips epochs, so it would create "
                "fewer step objects, and would assign random numbers and checkpoint states to the wrong ones.\n"
                "  wrong:  for epoch in run.epochs(9): step = run.step(model, optimizer, loss_fn); ...\n"
                "  right:  step = run.step(model, optimizer, loss_fn)\n"
                "          for epoch in run.epochs(9): ...             # create further steps before the next loop"
            )
        if loss_fn is not None and isinstance(model, list | tuple) and any(isinstance(m, nn.Module) for m in model):
            raise TypeError(
                "run.step got several models and a loss function, which is called with one model.\n"
                "  wrong:  run.step([encoder, head], [sgd, adam], loss_fn)\n"
                "  right:  run.step([encoder, head], [sgd, adam])          # and a loop over step.shards(batch)\n"
                "  right:  run.step(nn.ModuleList([encoder, head]), optimizer, loss_fn)"
            )
        # Only a step without loss_fn takes several. The checks below reject other types.
        models: list[Any] = _as_list(model) if loss_fn is None else [model]
        optimizers: list[Any] = _as_list(optimizer) if loss_fn is None else [optimizer]
        if loss_fn is None:
            options = {"clip_norm": clip_norm, "autocast": autocast, "batch_norm": batch_norm}
            check_manual_step(models, optimizers, options)
        whole = models[0] if len(models) == 1 else nn.ModuleList(models)
        check_model(whole, self.device)
        for opt in optimizers:
            check_optimizer(opt, list(whole.parameters()), allow_closure=loss_fn is None)
        scales_loss = autocast is torch.float16 or (loss_fn is None and loss_scale is not None)
        check_precision(torch.float16 if scales_loss else autocast, loss_scale, whole)
        check_batch_norm(batch_norm, whole, shards=self.shards, processes=self._team.size)
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm must be above 0, got {clip_norm!r}")
        captures = capture and self.device.type in GRAPHS
        if capture:
            check_capturable(loss_fn, optimizers[0], self.device, batch_norm=batch_norm)
        for part in models:
            self._state.register("model", part)
        for opt in optimizers:
            self._state.register("optimizer", opt)
        replica = Replica(whole, loss_fn, also=also, autocast=autocast, mean_buffers=mean_buffers, device=self.device)
        number = len(self._steps)
        for known_number, known in enumerate(self._replicas):  # a GAN has two steps, whose losses call both models
            known.add_modules({f"the model of step {number}": whole})
            replica.add_modules({f"the model of step {known_number}": known.model})
        check_same_model(self._team, replica.modules)
        scale = (loss_scale or LossScale()) if scales_loss else None
        allow_slices = loss_fn is not None and clip_norm is None and not scale
        step_optimizers = [
            self._step_optimizers.add(replica.params, opt, allow_slices=allow_slices) for opt in optimizers
        ]
        sums = self._team.sums(replica.params, step_optimizers[0])
        execution = BatchExecution(
            self._plan,
            replica,
            optimizers,
            self._team,
            sums,
            number=number,
            progress_line=self._progress_line,
            verifier=Verifier(
                self._team, replica, optimizers, number=number, every=self._verify, can_repeat=batch_norm == "shard"
            ),
            guard=self._shard_loop_guard,
            loss_scale=scale,
        )
        step: Step | ManualStep
        if loss_fn is None:
            step = ManualStep(execution, step_optimizers)
        else:
            execute: Execute = replica.execute
            if batch_norm == "global":
                execute = partial(execute_globally, replica, self._team)
            elif sums.overlap is not None:
                execute = partial(replica.execute_overlapping, sums.overlap)
            stages = TrainStages(execution, step_optimizers[0], execute, clip_norm=clip_norm)
            step = Step(stages, StepGraphs(stages, optimizers[0]) if captures else stages)
        self._steps.append(step)
        self._replicas.append(replica)
        self._state.register("step", step)
        return step

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers 0 to `count - 1`, or the remaining ones of a resumed run."""
        check_whole_number("the number of epochs", count, least=0)
        for epoch in self._plan.position.epochs(count):
            self._state.restore_random_state_if_due(in_pass=False)
            self._progress_line.epoch(epoch, count)
            yield epoch

    def batches(
        self,
        data: Data,
        batch_size: int,
        *,
        shuffle: bool | None = None,
        drop_last: bool = False,
        **loader: Unpack[LoaderArguments],
    ) -> Iterator[Batch]:
        """Yield the global batches of one pass over a data set, in an order that is drawn from (seed, epoch).

        Args:
            data: tensors, NumPy arrays, a tuple of them, or a map-style data set with `len(data)` and `data[index]`. Or
                an IterableDataset. It must yield the same samples in every iteration, because every process iterates
                all of it.
            batch_size: number of samples of the global batch, over all devices.
            shuffle: True by default. Not supported for an IterableDataset, which has its own order.
            drop_last: omit an incomplete last batch.
            loader: collate_fn, num_workers, prefetch_factor, pin_memory, persistent_workers, timeout and worker_init_fn
                of torch's DataLoader. Except for collate_fn, which collates the samples of one shard, they do not
                change the batches. Each process of the run has num_workers worker processes, and in a pool job you also
                lease one CPU for each. Tensors and arrays are read without workers, an IterableDataset by at most one.

        A resumed run continues with the first sample that no step has used. An IterableDataset continues from its
        state, if it or its iterator has state_dict and load_state_dict. Otherwise its earlier samples are read again.

        Raises:
            TypeError: the data set cannot be indexed, or an option is unknown.
            ValueError: an option is out of range, there are no samples, or their number has changed during the pass or
                since the checkpoint.
            An error of the data set is raised by the loop or by the step, with the index of the sample. If a worker
                dies, torch's error is raised.
        """
        options = LoaderOptions(**loader)
        size = check_whole_number("batch_size", batch_size, least=1)
        batches: Any = self._stream if isinstance(data, IterableDataset) else self._batches
        return self._restoring_random_state(batches(data, size, shuffle, drop_last, options))

    def _batches(
        self, data: Any, size: int, shuffle: bool | None, drop_last: bool, options: LoaderOptions
    ) -> Iterator[Batch]:
        reader = self._loaders.check_once(reader_of(data, options.collate_fn), data)
        length = len(reader)
        data_pass = self._plan.position.begin_pass(length)
        self._progress_line.begin_pass(length, length if data_pass.is_finished else data_pass.done)
        first, shards = data_pass.done, self.shards

        def requests() -> Iterator[dict[int, range]]:
            for start in range(first, length, size):
                if (batch := data_pass.range_at(start, size, drop_last)) is not None:
                    ranges = cut_range(batch, shards)
                    yield {shard: ranges[shard] for shard in self._own_shards() if ranges[shard]}

        source = PassReader(
            reader, length, data_pass.key.fold_in("reading"), data_pass.key if shuffle is not False else None
        )
        fetch = self._loaders.fetch(source, data, requests(), options)
        return iterate_batches(data_pass, size, shards, source, fetch, drop_last=drop_last)

    def _own_shards(self) -> range:
        return assign(self.shards, self._team.size)[self._team.index]

    def _stream(
        self, data: "IterableDataset[Any]", size: int, shuffle: bool | None, drop_last: bool, options: LoaderOptions
    ) -> Iterator[Batch]:
        if shuffle or options.persistent_workers or options.num_workers > 1:
            raise ValueError(
                "an IterableDataset has its own order, is read by at most one worker, and starts in a new worker in "
                "each pass: shuffle, persistent_workers and num_workers above 1 are not supported.\n"
                "Its __iter__ can shuffle with the global generators of torch, numpy or random, which are seeded from "
                "(seed, epoch)."
            )
        data_pass = self._plan.position.begin_pass(None)
        self._progress_line.begin_pass(None, data_pass.done)

        def new_reader() -> StreamReader:
            collate_fn = options.collate_fn or default_collate
            return StreamReader(data, collate_fn, data_pass, size=size, drop_last=drop_last, num_shards=self.shards)

        fetch = self._loaders.fetch_stream(new_reader, self._own_shards, options)
        return iterate_stream(data_pass, size, self.shards, new_reader(), fetch, drop_last=drop_last)

    def _restoring_random_state(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._state.restore_random_state_if_due(in_pass=True)
            yield batch

    def mean(
        self,
        fn: evaluation.Metric,
        model: nn.Module,
        data: Data,
        *,
        batch_size: int = 1024,
        **loader: Unpack[LoaderArguments],
    ) -> float:
        """Return the mean of a metric over a data set, in evaluation mode and without gradients.

        Args:
            fn: called as `fn(model, *batch)`. Returns one value per sample, or `(values, counts)`; the mean is
                sum(values) / sum(counts). Integers and booleans are added exactly.
            batch_size: number of samples of each call. The last bits of a mean of floats depend on it.
            loader: options of torch's DataLoader, see `batches`.

        >>> import fanwise
        >>> run = fanwise.here(); model = torch.nn.Linear(2, 2)
        >>> x, y = torch.eye(2), torch.tensor([0, 1])
        >>> accuracy = run.mean(lambda m, x, y: m(x).argmax(1) == y, model, (x, y))
        """
        self._shard_loop_guard.check("run.mean")
        options = LoaderOptions(**loader)
        size = check_whole_number("batch_size", batch_size, least=1)
        check_model(model, self.device)
        reader = reader_of(data, options.collate_fn)
        key, length = self._plan.key("mean"), len(reader)
        chunks = [range(start, min(start + size, length)) for start in range(0, length, size)]
        source = PassReader(reader, length, key, None)

        def fetch(own: range) -> Fetch:
            return self._loaders.fetch(source, data, [{0: chunks[index]} for index in own], options)

        return evaluation.mean(
            fn,
            model,
            chunks,
            source,
            fetch,
            key=key,
            team=self._team,
            generators=generators_of(self.device),
            on_progress=self._progress_line.record_evaluation,
        )

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank, in every process. Blocks until all processes call it.

        Args:
            value: any object that can be pickled. A function or method is called, and its result is gathered. It is
                called again if a process is lost meanwhile, because `run.rank` and `run.world_size` then change.

        >>> import fanwise
        >>> fanwise.here().gather(lambda: 7)
        [7]
        """
        self._shard_loop_guard.check("run.gather")
        return self._gather("gathers", value)

    def barrier(self) -> None:
        """Block until all processes call it."""
        self._shard_loop_guard.check("run.barrier")
        self._gather("waits at a barrier", None)

    def _gather(self, operation: str, value: Any) -> list[Any]:
        # Not `callable`: modules and metrics are values, although they can be called.
        pickles = self._team.together(
            lambda: self._team.gather(operation, _pickle(value() if inspect.isroutine(value) else value))
        )
        return [loads(pickled) for pickled in pickles]

    def report(self, **metrics: Any) -> None:
        """Append values to `run.rows`.

        A trial also reports them to the tuner, once for all processes. Blocks until the tuner decides whether the trial
        continues.

        Raises:
            TrialStopped: the tuner stops the trial.
            TypeError: a value is neither a number nor a string. ValueError: there are no values.
        """
        self._shard_loop_guard.check("run.report")
        values = plain_metrics(metrics)
        self.rows.append(values)
        report_together(self._team, self._monitor, len(self.rows), values)

    def print(self, *values: object, sep: str = " ", end: str = "\n") -> None:
        """Print in process 0 only."""
        if self.rank == 0:
            sys.stdout.write(sep.join(map(str, values)) + end)
            sys.stdout.flush()

    def keep(self, **objects: Stateful) -> None:
        """Store the state of these objects in checkpoints, for example `run.keep(scheduler=scheduler)`.

        After `restore`, this also loads their state from the checkpoint.

        Raises:
            TypeError: an object has no state_dict or load_state_dict. ValueError: the name is already used.
        """
        for name, value in objects.items():
            self._state.keep(name, value)

    def save(self, path: P) -> P:
        """Write a checkpoint, and return the path.

        Blocks until all processes call it and process 0 has written the file. An existing file is replaced atomically.
        An error is raised in process 0.

        A run that is resumed from a checkpoint saved inside the loop over the batches continues with the next batch. If
        it was saved after that loop, the run continues with the next epoch.

        Args:
            path: a file, or a URL for fsspec such as "s3://bucket/run.pt".

        Raises:
            ValueError, NotInstalled: fsspec does not have the file system, or the URL is memory:// and the run has
                several processes.
            OSError, CheckpointError: the checkpoint could not be written.
            Errors of torch and pickle: the state of an object cannot be serialized.
        """
        self._shard_loop_guard.check("run.save")
        location = location_of(path)
        if is_in_process_memory(location) and not isinstance(self._team, Alone):
            raise ValueError(
                f"path={path!r} is the memory of one process of this run, which is lost when the process ends.\n"
                f"Use a file or another URL. memory:// is for runs in the calling process."
            )
        errors: list[Exception] = []
        self._team.together(lambda: self._write_checkpoint(location, errors))
        if errors:
            raise errors[0]
        return path

    def _write_checkpoint(self, location: Location, errors: list[Exception]) -> None:
        if self._team.index == 0:
            try:
                checkpoint_file.write_checkpoint(location, checkpoint_file.serialize(self._state.content()))
                self._monitor.checkpoint_written(os.fspath(location))
            except Exception as error:
                errors.append(error)  # raised after the collective operation, because the program may catch it
        self._team.gather("saves a checkpoint", None)

    def restore(self, path: StrPath, *, weights_only: bool = True) -> None:
        """Continue from a checkpoint, on any number of devices. Call it before the first epoch and batch.

        Shards, threads and seed become those of the checkpoint. The state of an object is loaded when the object is
        passed to `run.step` or `run.keep`.

        Args:
            path: a file, or a URL for fsspec.
            weights_only: False allows kept objects of any type. Loading then unpickles them, which can execute code in
                the file, so use it only with trusted files.

        Raises:
            FileNotFoundError: the file does not exist. CheckpointError: the file system of the URL cannot be accessed.
            ValueError: the file is not a checkpoint, an epoch or pass has started, or `fanwise.run` was given other
                shards, threads, seed or reduce.
        """
        if self._plan.position.has_started:
            raise ValueError("run.restore was called after run.epochs or run.batches. Call it before them")
        self._state.adopt(checkpoint_file.read_checkpoint(path, weights_only), path)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) else [value]


def _pickle(value: Any) -> bytes:
    try:
        return dumps_in_band(value)
    except Exception as error:
        raise NotSendableError(
            f"run.gather cannot send a {type(value).__name__} to the other processes, because it cannot be pickled: "
            f"{error}.\nUse numbers, tensors, lists and dicts."
        ) from error
