"""Callbacks of a search, and those for TensorBoard, MLflow and Weights & Biases."""

from .events import SearchEnded as SearchEnded
from .events import SearchStarted as SearchStarted
from .events import TrialEnded as TrialEnded
from .events import TrialReported as TrialReported
from .events import TrialStarted as TrialStarted
from .with_mlflow import MLflowCallback as MLflowCallback
from .with_tensorboard import TensorBoardCallback as TensorBoardCallback
from .with_wandb import WandbCallback as WandbCallback
