"""Optimizers. `sharded`: the optimizer of a step, which is updated as a whole, or divided among the processes."""
