"""Tensors in device memory: their target devices, and transfers without main memory.

device_maps    target device of a tensor on the callee
loans          decides between lending and staging, and tracks loans. Pure; lending executes it
device_memory  interface of a device; cuda_memory: CUDA
"""
