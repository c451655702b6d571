"""A device at work on the shards of a step.

replicas          shards in, nodes of the tree out
gradients         what a shard brings, and how two of them are added
losses            what a loss function may return, or step.backward be given
buffers           buffers of modules: every shard begins with the same ones
"""
