"""The primitives of data parallelism: functions on lists of arrays, one entry a device.

    replicas = replicate(model.parameters(), devices)      a copy for each device
    X_parts, y_parts = split_batch(X, y, devices)          a part of the batch for each
    allreduce([params[0].grad for params in replicas])     the sum for all, in place

`reducing` says which way of summing costs what. Knows no model, no process and no network: all devices are those of
this process.
"""

from .copying import replicate as replicate
from .copying import split_batch as split_batch
from .reducing import allreduce as allreduce
from .reducing import reduce_scatter as reduce_scatter
from .spreading import all_gather as all_gather
from .spreading import broadcast as broadcast
