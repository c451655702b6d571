"""Data-parallel training whose result does not depend on the number of devices.

run                fanwise.run and fanwise.here
context            Run, the argument of a training function
config, devices    settings that determine the result; the argument `devices`
step, data         one step, divided into shards; batches
comm               collective operations
launch             starts the processes on this machine or a Ray cluster, or joins those of a launcher
validation         checks of arguments, and whether all processes do the same
optim, batch_norm  optimizers that are divided among processes; batch normalization over the whole batch
checkpoint         one file, or one object at a URL
progress           the line on standard error, and the status file for the board
process_settings   threads, settings of torch, and memory during a run
rng                random numbers of a shard
evaluation         run.mean
primitives         replicate, split_batch and allreduce for lists of tensors
"""

# ruff: noqa: E402  # first check that torch is installed
from ..base.extras import check_installed as _check_installed

_check_installed("training on several devices (fanwise.run, fanwise.parallel) needs", "torch", extra="torch")

from .context import Run as Run
from .data.batch import Batch as Batch
from .launch.launchers import LaunchedProcess as LaunchedProcess
from .launch.launchers import from_environment as from_environment
from .primitives import allreduce as allreduce
from .primitives import replicate as replicate
from .primitives import split_batch as split_batch
from .run import here as here
from .run import run as run
from .step.loss_scale import LossScale as LossScale
from .step.manual_step import ManualStep as ManualStep
from .step.train_step import Step as Step
