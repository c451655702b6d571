"""Data sets, cut into batches and the shards of a step.

position      position of a training in its data; order of the samples
batch         batches of nested tensors, cut into shards; asynchronous copies to a device
dataset       reads the samples of a map-style data set and collates a shard
stream        reads the batches of an iterable data set
loader        loops over batches, whose shards are read in the step or in worker processes
"""
