"""Data-parallel training whose result does not depend on the devices.

shards, order (quiet)             how a batch is cut and added up again; where a training is in its data
running, runs, plans              fanwise.run, fanwise.here, and the Run that a training function gets
stepping, replicas, gradients     one step; a device at work; what a shard brings
buffers, losses, chance           what a shard may change, return and draw
batches, splitting, evaluation    data in shards; means over data
checkpoints, checking, devices    files; wrong input; which devices there are
scaling, loss_scale               rates for larger batches; float16
batch_norm                        batch normalisation with the statistics of the whole batch
collectives                       replicate, split_batch, allreduce ...: the primitives, on lists of arrays
"""

from .batches import Batch as Batch
from .collectives import all_gather as all_gather
from .collectives import allreduce as allreduce
from .collectives import broadcast as broadcast
from .collectives import reduce_scatter as reduce_scatter
from .collectives import replicate as replicate
from .collectives import split_batch as split_batch
from .loss_scale import LossScale as LossScale
from .running import here as here
from .running import run as run
from .runs import Run as Run
from .scaling import scale_lr as scale_lr
from .scaling import warm_up as warm_up
from .stepping import Step as Step
