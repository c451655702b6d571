"""A device at work on shards of a functional model.

    ShardWork --arrays of the engine--> loss, gradients --torch tensors over their memory--> Partial --tree--> nodes

What comes out is what torch models bring, so sums, teams and failures are theirs.
"""

from collections.abc import Sequence

import torch

from ...tensor.random.keys import Key
from ..data.splitting import arguments
from ..replica.gradients import Partial, add
from ..replica.losses import count_of
from ..replica.replicas import ShardWork, noted
from ..shards import Node, TreeSum
from .buffers import changed
from .engines import Differentiated, Engine, Tree
from .leaves import check_same_tree


class FunctionalReplica:
    """The parameters of one memory, and the function that differentiates their loss.

    Attributes:
        params, buffers: trees of arrays, which a step replaces; buffers are None where there are none.
    """

    def __init__(
        self, engine: Engine, differentiated: Differentiated, params: Tree, buffers: Tree, device: torch.device
    ) -> None:
        self.params, self.buffers = params, buffers
        self._engine = engine
        self._differentiated = differentiated
        self._device = device

    def execute(self, work: Sequence[ShardWork], key: Key, shards: int) -> list[Node[Partial]]:
        """The nodes of the tree over `shards` that cover `work`, which are consecutive shards."""
        tree: TreeSum[Partial] = TreeSum(shards, add)
        for each in work:
            with noted(each, shards):
                value = self.differentiate(each, key) if each.samples else None
            tree.put(Node(each.index, each.index + 1, value))
        return tree.nodes

    def differentiate(self, work: ShardWork, key: Key) -> Partial:
        """Forward and backward of one shard."""
        content = work.read(work.index)
        assert content is not None, "a shard without samples is not executed"
        engine = self._engine
        with engine.placed(self._device):
            samples = engine.taken(arguments(content))
            own = key.fold_in(work.index)
            loss, grads, counts, made = self._differentiated(self.params, self.buffers, samples, own, work.samples)
            check_same_tree(engine, made, self.buffers, "loss_fn returned buffers")
            buffers = [engine.to_torch(leaf) for leaf in engine.flatten(made)[0]]
        return Partial(grads, loss, count_of(counts), work.samples, changed(buffers, work.samples))
