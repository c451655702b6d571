"""Data sets, cut into batches and the shards of a step.

position      position of a training in its data; order of the samples
batch         batches of nested tensors, cut into shards; asynchronous copies to a device
dataset       reads and collates the samples of a shard
loader        loads shards in the step, or in worker processes
stream        the same for iterable data sets
"""
