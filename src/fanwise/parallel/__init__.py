"""Data-parallel training whose result does not depend on the devices.

running, runs, plans         fanwise.run, fanwise.here, and the Run that a training function gets
shards (quiet)               how a batch is cut and added up again
step, replica, data          one step; a device at work on shards; batches in shards
teams                        the processes of a run, as a step sees them:
    shared_memory            of one machine, and their supervisor, which starts them and outlives them
    torch_distributed        started by somebody else
    hosts                    the same, on several hosts with a secret: a loss costs the step
    cluster                  processes that are jobs of a pool on a cluster, and linked as those of `hosts`
checks, hangs                what would make a result depend on the devices; a training that does not come on
optimizers, batch_norm       updates by slices; normalisation with the statistics of the whole batch
checkpoints, progress        files; the line on screen
process_settings, rng        threads, switches and memory; random numbers of a shard
evaluation, ranks            measures over data; what processes tell each other, rank by rank
scaling                      rates for larger batches
devices, defaults            which devices there are; what a run takes where nothing was said
primitives                   replicate, split_batch, allreduce, on lists of tensors
"""

# ruff: noqa: E402  # torch is looked for first
from ..base.extras import check_installed as _check_installed

_check_installed("training on several devices (fanwise.run, fanwise.parallel) needs", "torch", extra="torch")

from .data.batches import Batch as Batch
from .primitives import allreduce as allreduce
from .primitives import replicate as replicate
from .primitives import split_batch as split_batch
from .running import here as here
from .running import run as run
from .runs import Run as Run
from .scaling import scale_lr as scale_lr
from .scaling import warm_up as warm_up
from .step.loss_scale import LossScale as LossScale
from .step.manual_step import ManualStep as ManualStep
from .step.train_step import Step as Step
