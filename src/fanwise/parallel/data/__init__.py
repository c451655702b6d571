"""Data, cut into the shards of steps.

order (quiet)    where a training is in its data; the order of an epoch
reading          a shard of a data set, sample by sample or by one indexing
batches          a pass, batch by batch: where the shards of each come from
streams          the same of an iterable data set, whose order is its own
arguments        the arguments of a DataLoader, as run.batches and run.mean take them
loader           loads shards in worker processes of torch's DataLoader
transfer         how it comes to a device
arrays           NumPy arrays as tensors over the same memory
splitting        batches as trees of tensors: counted, cut, joined
"""
