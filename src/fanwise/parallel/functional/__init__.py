"""Models that are values: parameters in a tree, a loss that is a pure function of them. JAX and TensorFlow.

    run.step(params, update, loss_fn, state=..., buffers=...)

step            one step of training: shards, sums and teams of torch models; the update is a function of the user's
replica         a device at work on shards: gradients as torch tensors, which is what sums and teams add
losses          how a loss is called, and what it may return
buffers         what a loss hands back besides (statistics of batch normalisation): one value for all shards
leaves          trees by the paths of their leaves: what a checkpoint holds, what is wrong with a tree
checking        what is wrong with what a step is given, or its functions return
measuring       run.mean and run.sum of such a model
engines         which engine a tree belongs to; what is asked of an engine
with_jax, with_tensorflow    the engines: compiling, differentiating, arrays from and to torch
"""
