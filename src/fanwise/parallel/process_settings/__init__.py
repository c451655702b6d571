"""What a run sets in its process, and puts back.

applied         all of it: threads, random states, deterministic operators
switches        what the program has set before, carried to every process of the run
malloc_tuning   freed memory stays
cuda            what holds on a CUDA device besides
"""
