"""A run in processes that somebody else has started: torchrun, a batch system or the program itself.

launcher      whether that is so, who this process is, its device
groups        process groups of torch.distributed, ours alone; bytes and slices from all to all
team          what all exchange, how the error of one reaches all
exact_sums    gradients, added along the tree over the shards, each slice by its owner
all_reduce    gradients, added by the back end: reduce="fast"
layout        where the parameters of a step lie in flat memory
neighbours    what the other processes are doing, where one is late
"""
