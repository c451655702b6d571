"""Checkpoints of a run.

state      the content of a checkpoint
file       one file that torch.load reads, written in the background and replaced as a whole
location   its path, or its URL for fsspec
"""
