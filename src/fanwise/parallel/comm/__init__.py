"""Communication between the processes of a run.

team            `Team`, the interface that the rest of the package uses, and `Alone`, the team of one process
sums            the sums of one step over all processes
all_reduce      `AllReduce`, which adds gradients, and the exact one with its `Transport`s
flat_layout     parameters in flat memory, divided into slices and buckets
node_info       what processes send of a node besides its gradients
torch_team      processes with a process group of torch.distributed; uses torch_group, group_reduce
shm_team        CPU ranks of one machine; uses shared_memory, shm_areas, shm_transports, control_block, futex
stragglers      detects which processes hang
stack_dump      the state and the Python stacks of another process
pipes           messages from a rank to its supervisor
"""
