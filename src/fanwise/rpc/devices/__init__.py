"""Tensors in the memory of devices: where they arrive, and how they get there without main memory.

    device_maps    on which device of the other worker a tensor arrives
    loans (quiet)  which way a tensor goes, and what is lent meanwhile; lending carries it out
    device_memory  what is asked of a device; cuda_memory: CUDA

Knows no call: messages carry what is said of a tensor.
"""
