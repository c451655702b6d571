"""Data, cut into the shards of steps.

order (quiet)   where a training is in its data; the order of an epoch
batches         a data set's batches, read and collated shard by shard
splitting       batches as trees of tensors: counted, cut, joined
"""
