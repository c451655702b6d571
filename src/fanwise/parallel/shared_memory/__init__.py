"""The processes of a run on one machine: a team over memory that all share.

team                       what all exchange, and what is done again when one is lost
control_block, futex       numbers and boxes that all see, and waiting for them
memory, areas              the memory; where the parameters of a step lie in it
two_shot, one_shot, told   sums of gradients: each adds a slice, or each adds all
direct, staging            how a CPU rank and a GPU rank come at the memory
sharding, spread_state     each process updates its slices of the optimizer
joining, pipes             the state for who comes later; messages to the supervisor
"""
