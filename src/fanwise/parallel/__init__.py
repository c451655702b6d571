"""Data-parallel training whose result does not depend on the devices.

run, context, config         fanwise.run, fanwise.here; the Run that a training function gets; settings and defaults
step, data                   one step: shards, and their sum along a tree; batches in shards
comm                         process groups of torch.distributed, and the shared memory of CPU ranks of one machine
launch                       starts the processes on this machine or on a Ray cluster, or joins those of a launcher
validation                   checks of arguments and of the agreement of processes
optim, batch_norm            updates by slices; batch normalization over the whole batch
checkpoint                   one file or URL, written in the background
progress                     the line on standard error; the status file for the board
process_settings, rng        threads, settings of torch, memory; random numbers of a shard
evaluation                   run.mean and run.sum
user_collectives             run.gather, run.all_reduce and run.barrier
devices                      the devices of a run
primitives                   replicate, split_batch and allreduce for lists of tensors
"""

# ruff: noqa: E402  # first check that torch is installed
from ..base.extras import check_installed as _check_installed

_check_installed("training on several devices (fanwise.run, fanwise.parallel) needs", "torch", extra="torch")

from .context import Run as Run
from .data.batch import Batch as Batch
from .primitives import allreduce as allreduce
from .primitives import replicate as replicate
from .primitives import split_batch as split_batch
from .run import here as here
from .run import run as run
from .step.loss_scale import LossScale as LossScale
from .step.manual_step import ManualStep as ManualStep
from .step.train_step import Step as Step
