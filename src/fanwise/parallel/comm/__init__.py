"""Communication between the processes of a run.

team            the interface of a step to the other processes: `Team`, and `Alone` for one process
all_reduce      the interface of an all-reduce of gradients, and the exact one in two phases
sums            the sums of one step: gradients by an all-reduce, everything else in one gather
flat_layout     where the parameters of a step lie in flat memory, and who owns which slice
node_info       the data of a process's nodes of the tree besides gradients
torch_team      processes with a process group of torch.distributed: `torch_group`, `exact`, `fast`, `neighbors`
shm_team        CPU ranks of one machine: `shared_memory`, `shm_areas`, `control_block`, `shm_exact`, `shm_one_shot`
stragglers      which processes are behind, and for how long
stack_dump      the state and the Python stack of a process
pipes           messages from a rank to its supervisor
"""
