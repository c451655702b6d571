"""Checkpoints: copies of a state, and files that are replaced as a whole.

run_state     what belongs to a checkpoint, and what is taken from one
files         one file, written in the background, that torch.load reads
places        where it is: a path, or a URL that fsspec knows
snapshots     the copy that is written, as the state is at this moment
"""
