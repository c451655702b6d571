"""Starting the processes of a run.

local, worker         supervises ranks of this machine; what runs in each of them
ray, ray_worker       the same for ranks that are jobs on a Ray cluster
external              ranks that torchrun, SLURM or MPI have started
membership (quiet)    which CPU ranks take part after a loss, and which exchanges are committed
settings, speaking    what a rank is told; printing and reporting once for all ranks
jobs, pools, gpus     ranks as jobs of a pool, the pool of a run, the GPUs of its ranks
"""
