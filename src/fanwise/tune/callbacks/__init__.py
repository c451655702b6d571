"""Events for the callbacks of a search, and callbacks for TensorBoard, MLflow and Weights & Biases."""

from .search_events import SearchEnded as SearchEnded
from .search_events import SearchStarted as SearchStarted
from .search_events import TrialEnded as TrialEnded
from .search_events import TrialReported as TrialReported
from .search_events import TrialStarted as TrialStarted
from .with_mlflow import MLflowCallback as MLflowCallback
from .with_tensorboard import TensorBoardCallback as TensorBoardCallback
from .with_wandb import WandbCallback as WandbCallback
