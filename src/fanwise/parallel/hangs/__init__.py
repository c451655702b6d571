"""Detection of runs that hang.

stragglers    which processes are behind, and for how long
stack_dump    the state and the Python stack of a process
watchdog      the same for a run in one process
"""
