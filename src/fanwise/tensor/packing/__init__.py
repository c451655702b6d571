"""`pack(tree)`: the arrays of a tree side by side in one flat buffer, and `unpack`: the tree again."""

from .layout import PackedLeaf as PackedLeaf
from .layout import PackSpec as PackSpec
from .packs import pack as pack
from .packs import unpack as unpack
