"""The processes of a run on one machine: a team over memory that all share.

team                       what all exchange, and what is done again when one is lost
control_block, futex       numbers and boxes that all see, and waiting for them
memory, areas              the memory; where gradients, parameters and state of a step lie in it
one_shot                   sums of small models: each process adds all
direct, staging            transports of slices: of a CPU rank, and of a GPU rank
rank_groups                a back end of torch.distributed between the ranks: reduce="fast" on GPUs
pipes                      messages to the supervisor
"""
