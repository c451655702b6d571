"""TensorBoard callback: one run per trial, with hyperparameters and curves of the reports.

torch and tensorboard are imported when the callback is created.
"""

import os
from pathlib import Path
from typing import Any

from ...base.extras import check_installed
from .search_events import SearchStarted, TrialEnded, TrialReported, TrialStarted


class TensorBoardCallback:
    """Writes event files for TensorBoard: `tensorboard --logdir <folder>`.

    Args:
        folder: folder of the event files, with a subfolder per trial. None: `tensorboard` in the experiment's folder.

    Raises:
        NotInstalled: tensorboard is not installed.

    >>> from fanwise.tune.callbacks import TensorBoardCallback
    >>> callbacks = [TensorBoardCallback()]
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        check_installed("TensorBoardCallback needs", "torch", "tensorboard", extra="tensorboard")
        from torch.utils import tensorboard

        self._make_writer: Any = tensorboard.SummaryWriter
        self._folder = None if folder is None else Path(folder)
        self._writers: dict[int, Any] = {}  # SummaryWriter of each running trial

    def on_start(self, event: SearchStarted) -> None:
        if self._folder is None:
            self._folder = event.path / "tensorboard"

    def on_trial_start(self, event: TrialStarted) -> None:
        assert self._folder is not None, "on_start was not called"
        purge_step = None if event.void_after is None else event.void_after + 1  # hides discarded reports
        folder = str(self._folder / f"trial-{event.trial_id}")
        self._writers[event.trial_id] = self._make_writer(folder, purge_step=purge_step)

    def on_report(self, event: TrialReported) -> None:
        writer = self._writers.get(event.trial_id)
        if writer is None:  # on_trial_start failed
            return
        for name, value in event.values.items():
            if isinstance(value, str):
                writer.add_text(name, value, event.iter)
            else:
                writer.add_scalar(name, value, event.iter)

    def on_trial_end(self, event: TrialEnded) -> None:
        writer = self._writers.pop(event.trial_id, None)
        if writer is None:
            return
        if event.is_over:
            config = {
                name: value if isinstance(value, bool | int | float | str) else str(value)
                for name, value in event.config.items()
            }
            metrics = {f"last/{name}": value for name, value in event.values.items() if not isinstance(value, str)}
            writer.add_hparams(config, metrics, run_name=".")
        writer.close()

    def on_end(self, event: object) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
