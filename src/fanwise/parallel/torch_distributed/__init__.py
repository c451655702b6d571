"""A run in processes that somebody else has started: torchrun, a batch system or the program itself.

launcher      whether that is so, who this process is, its device
groups        process groups of torch.distributed, ours alone; bytes and slices from all to all
team          what all exchange, how the error of one reaches all
messages      slices of gradients from process to process: the transport of reduce="exact"
backend       gradients, added by the back end: reduce="fast"
neighbours    what the other processes are doing, where one is late
"""
