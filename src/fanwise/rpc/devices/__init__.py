"""Devices of tensors in calls.

device_maps    target device of a tensor on the callee
cuda_ipc       CUDA tensors between processes of one host, without main memory
"""
