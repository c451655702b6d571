"""Checkpoints of a run.

state      the content of a checkpoint
file       one file that torch.load reads, replaced as a whole
location   its path, or its URL for fsspec
"""
