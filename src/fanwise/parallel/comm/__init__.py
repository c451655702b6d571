"""Communication between the processes of a run.

team            what a step needs of the other processes: `Team`, and `Alone` for one process
flat_layout     where the parameters of a step lie in flat memory, and who owns which slice
node_info       what a process sends about its nodes of the tree besides gradients
torch_team      processes with a process group of torch.distributed: `torch_group`, `exact`, `fast`, `neighbors`
shm_team        CPU ranks of one machine: `shared_memory`, `shm_areas`, `control_block`, `shm_exact`, `shm_one_shot`
pipes           messages from a rank to its supervisor
"""
