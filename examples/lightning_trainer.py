"""Takes about 1 minute: a `Trainer` of Lightning with a callback that reports every validation, and checkpoints.

ASHA by promotion pauses trials at its rungs. A promoted trial restarts from its last checkpoint, which Lightning writes
and reads.
"""

from pathlib import Path

import lightning
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fanwise.tune import ASHA, StoppingCriterion, Tuner, load_checkpoint, loguniform, randint, report, trial_folder
from fanwise.zoo import DropoutMLP, digits

TRIALS = 20
MAX_EPOCHS = 9


class Digits(lightning.LightningModule):
    def __init__(self, learning_rate: float, width: int) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.model = DropoutMLP(width, width, 0.2, 0.2)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        return cross_entropy(self.model(images), labels)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, labels = batch
        self.log("error", (self.model(images).argmax(1) != labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.learning_rate)


class ReportCallback(lightning.Callback):
    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        def save(folder: Path) -> None:
            trainer.save_checkpoint(folder / "last.ckpt")

        error = float(trainer.callback_metrics["error"])
        report(epoch=trainer.current_epoch + 1, error=error, checkpoint=save)


def train(learning_rate: float, width: int, batch_size: int) -> None:
    data = digits()
    train_loader = DataLoader(TensorDataset(data.train_images, data.train_labels), batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(data.test_images, data.test_labels), 512)
    folder = load_checkpoint()
    trainer = lightning.Trainer(
        max_epochs=MAX_EPOCHS,
        accelerator="auto",
        devices=1,
        callbacks=[ReportCallback()],
        default_root_dir=trial_folder(),
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    path = None if folder is None else folder / "last.ckpt"
    trainer.fit(Digits(learning_rate, width), train_loader, test_loader, ckpt_path=path)


space = {"learning_rate": loguniform(1e-4, 1e-1), "width": randint(16, 256), "batch_size": randint(32, 256)}
scheduler = ASHA(metric="error", resource_attr="epoch", max_t=MAX_EPOCHS, type="promotion")
experiment = Tuner(train, space, scheduler, StoppingCriterion(max_num_trials_started=TRIALS), n_workers=2).run()
print(f"best: {experiment.best}")
