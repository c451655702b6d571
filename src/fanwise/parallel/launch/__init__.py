"""Starts the processes of a run.

supervisor       starts the ranks, handles their messages and outlives them
local, ray       supervisors of ranks on this machine, and of ranks that are jobs on a Ray cluster
worker           the main function of a rank
external         ranks that torchrun, SLURM or MPI has started
membership       members and committed operations of CPU ranks, after a loss
settings, pools  settings that the supervisor and all ranks share; the pool of a run
"""
