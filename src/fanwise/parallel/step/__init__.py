"""`run.step`: from a batch to updated parameters.

stepping      one step over all shards
loss_scale    float16: losses are scaled, and steps with overflows left out
"""
