"""The process that starts the ranks of a run and outlives them.

supervisor            starts, listens, decides about deaths, hangs and the end
membership (quiet)    who takes part in which view, and what is committed
settings              what the caller asks for, for all of them
ranks                 what is executed in each rank
speaking              printing and reporting, once for all ranks
jobs, pools, gpus     ranks as jobs of a pool, the pool of a run, the GPUs of its ranks
"""
