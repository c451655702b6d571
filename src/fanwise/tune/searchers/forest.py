"""Forest: randomised trees whose answers are a distribution, one number from each tree.

    Forest(features_NF, targets_N, chance)   each tree is grown on rows drawn with replacement
        .means(features_CF)     (C, T)   what each tree says of new rows

The spread of the answers is small where trials are near and large where there are none. Trials that still run are no
rows yet, but nothing is learnt by trying next to them: `means(..., pending_PF, lie)` counts each of them in its leaf
of every tree as one more row that came out as `lie`. That is what growing the trees anew would make of it, at
the cost of one look-up.

Grown tree by tree, in this thread: no pool is started, and the same rows and chance give the same forest.
"""

# N: rows that are learnt from, C: other rows, P: pending rows, F: features, T: trees

from typing import Any, final

import numpy as np

from .encoding import Floats
from .with_sklearn import extra_tree


@final
class Forest:
    """T extremely randomised trees (Geurts, Ernst and Wehenkel, Machine Learning 63, 2006), grown by scikit-learn.

    Args:
        features_NF, targets_N: what is learnt; finite numbers.
        chance: of the rows and the splits.
        num_trees: T.
    """

    def __init__(self, features_NF: Floats, targets_N: Floats, chance: np.random.Generator, *, num_trees: int) -> None:
        features = features_NF.astype(np.float32)
        drawn_TN = chance.integers(len(targets_N), size=(num_trees, len(targets_N)))
        self._trees: list[Any] = []  # scikit-learn's, which have no types
        for drawn, seed in zip(drawn_TN, chance.integers(2**31, size=num_trees).tolist(), strict=True):
            grown = extra_tree(seed)
            grown.fit(features[drawn], targets_N[drawn], check_input=False)
            self._trees.append(grown.tree_)

    def means(self, features_CF: Floats, pending_PF: Floats | None = None, lie: float = 0.0) -> Floats:
        """What each tree says, (C, T); `pending_PF` count as rows that came out as `lie`."""
        features = features_CF.astype(np.float32)
        pending = None if pending_PF is None else pending_PF.astype(np.float32)
        answers = np.empty((len(features), len(self._trees)))
        for place, tree in enumerate(self._trees):
            value = tree.value[:, 0, 0]
            if pending is not None and len(pending):
                count = tree.n_node_samples
                more = np.bincount(tree.apply(pending), minlength=len(count))
                value = (value * count + lie * more) / (count + more)
            answers[:, place] = value[tree.apply(features)]
        return answers
