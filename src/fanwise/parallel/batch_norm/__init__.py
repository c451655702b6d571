"""Batch normalization with the statistics of the whole batch, for runs with one shard per process.

layers     the device that executes a shard with such layers, and their forward and backward passes
moments    count, mean and squared deviations of a channel, and how to merge them
"""

from .layers import BatchNorm as BatchNorm
from .layers import GlobalNormDevice as GlobalNormDevice
from .layers import check_batch_norm as check_batch_norm
