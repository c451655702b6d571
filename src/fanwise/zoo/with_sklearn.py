"""scikit-learn's table of digits: where it lies, and, where it lies elsewhere, by scikit-learn itself."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def shipped_table() -> Path:
    """The table inside scikit-learn, found without importing it: the import takes a second, in every trial."""
    spec = find_spec("sklearn")
    package = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else ""
    return Path(package, "datasets", "data", "digits.csv.gz")


def load_table() -> "tuple[NDArray[np.uint8], NDArray[np.uint8]]":
    """Pixels and labels, as scikit-learn reads them."""
    import numpy as np
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.data.astype(np.uint8), bunch.target.astype(np.uint8)
