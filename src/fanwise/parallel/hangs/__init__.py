"""A training that does not come on: who is late, where it stands, and who says so.

stalls (quiet)   which process is furthest behind, and for how long
stacks           what a process is doing, as text, also one that cannot answer
watchdog         the same for a training in one process
"""
