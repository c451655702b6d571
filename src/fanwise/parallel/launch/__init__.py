"""Starts the processes of a run.

local, worker      supervisor of the ranks on this machine; the main function of a rank
ray, ray_worker    the same for ranks that are jobs on a Ray cluster
external           ranks that torchrun, SLURM or MPI has started
membership         members and committed exchanges of CPU ranks, after a loss
settings           settings that the supervisor and all ranks share
jobs, pools        the job of a rank; the pool of a run
"""
