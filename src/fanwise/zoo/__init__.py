"""Data sets, models and training steps of the demo, the examples and the benchmarks.

    data = digits().standardized()
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train_epoch(model, optimizer, data.train_images, data.train_labels, batch_size=32)
    error_rate(model, data.test_images, data.test_labels)

torch and numpy are imported when a data set is loaded, or a model or training step is first used.
"""

from typing import TYPE_CHECKING

from ..base.extras import check_installed as _check_installed
from ..base.lazy_names import lazy_names
from .data import Data as Data
from .digits import digits as digits
from .fashion_mnist import fashion_mnist as fashion_mnist


def _check_torch() -> None:
    _check_installed("fanwise.zoo needs", "torch", extra="demo")


if TYPE_CHECKING:
    from .models import DropoutMLP as DropoutMLP
    from .models import LeNet as LeNet
    from .models import Residual as Residual
    from .training import discounted_returns as discounted_returns
    from .training import error_rate as error_rate
    from .training import reinforce_loss as reinforce_loss
    from .training import train_epoch as train_epoch
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__, check=_check_torch)
