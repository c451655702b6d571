"""Optimizers whose update and state are divided among the processes.

step_optimizer   the optimizer of a step, updated as a whole or by slices
sharded          each process updates its slice of the parameters, and keeps the state of that slice
"""
