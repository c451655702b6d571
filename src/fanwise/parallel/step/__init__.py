"""One training step: shards of a batch, their gradients added over all processes, one update.

train_step        `step(batch)`: forward and backward, reduction, clipping, update
manual_step       `for shard in step.shards(batch)`: the same with a loop in the program
batch_execution   the part that both have in common
cuda_graph        `capture=True`: a whole step as one CUDA graph
loss_scale        scaled losses for float16
replicas          forward and backward of the shards of a process
losses            results of loss functions
buffers           buffers of the modules during a step
gradients         the result of a shard, and the addition of two results
tree              cuts a batch into shards and adds along a fixed tree
"""
