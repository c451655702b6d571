"""`run.mean` and `run.sum` of a functional model: a measure is called with arrays of the engine of the model."""

from contextlib import AbstractContextManager

import torch

from ..data.arrays import in_torch
from ..data.splitting import Content, arguments
from ..evaluation import Measure, measured
from .checking import check_threads
from .engines import Engine, Tree


class FunctionalMeasure:
    """Calls `fn(model, *samples)` and reads what it returns."""

    def __init__(self, engine: Engine, fn: Measure, model: Tree, device: torch.device) -> None:
        check_threads(engine, device)
        self._engine = engine
        self._fn = fn
        self._model = model
        self._device = device

    def entered(self) -> AbstractContextManager[object]:
        return self._engine.placed(self._device)

    def __call__(self, content: Content, samples: int) -> tuple[float, float]:
        """The sum of the values of one chunk, and how many they are."""
        return measured(in_torch(self._fn(self._model, *self._engine.taken(arguments(content)))), samples)
