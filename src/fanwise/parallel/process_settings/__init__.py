"""Settings of a process during a run, which are restored after it.

environment      all of them: threads, random states, deterministic operators
torch_settings   settings that the program has made, which are applied in every process of the run
malloc           freed memory stays with the process
cuda             settings for a CUDA device
"""
