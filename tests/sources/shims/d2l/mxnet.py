"""As torch.py beside it, for MXNet's program. Each device is a CPU, of which MXNet counts as many as one likes."""

from collections.abc import Callable, Iterator
from typing import Any

from mxnet import np, npx

from .torch import Animator as Animator
from .torch import Timer as Timer
from .torch import load_data_fashion_mnist as _torchs


class _Batches:
    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for X, y in self._batches:
            yield np.array(X.numpy()), np.array(y.numpy())


def load_data_fashion_mnist(batch_size: int) -> tuple[_Batches, _Batches]:
    train, test = _torchs(batch_size)
    return _Batches(train), _Batches(test)


def try_gpu(number: int = 0) -> Any:
    return npx.cpu(number)


def sgd(params: list[Any], lr: float, batch_size: int) -> None:
    for param in params:
        param[:] = param - lr * param.grad / batch_size


def evaluate_accuracy_gpu(net: Callable[[Any], Any], batches: _Batches, device: Any) -> float:
    right = [
        net(X.as_in_ctx(device)).argmax(axis=1).astype("float32") == y.as_in_ctx(device).astype("float32")
        for X, y in batches
    ]
    return float(sum(float(each.sum()) for each in right) / sum(each.size for each in right))
