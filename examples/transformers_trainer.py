"""Takes about 1 minute: a `Trainer` of Hugging Face transformers with a callback that reports every evaluation.

The model is a small vision transformer without pretrained weights, the images are scikit-learn's digits, so nothing is
downloaded.
"""

from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

from fanwise.tune import ASHA, StoppingCriterion, Tuner, choice, loguniform, report, trial_folder

TRIALS = 12
EPOCHS = 9
IMAGES = 1200
X_train, X_test, y_train, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)


class ReportCallback(TrainerCallback):
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **others: Any) -> None:
        report(epoch=round(state.epoch), loss=metrics["eval_loss"], error=metrics["eval_error"])


def rows(images: Any, labels: Any) -> list[dict[str, Any]]:
    return [
        {"pixel_values": torch.tensor(image / 16, dtype=torch.float32).reshape(1, 8, 8), "labels": int(label)}
        for image, label in zip(images, labels, strict=True)
    ]


def train(learning_rate: float, weight_decay: float, hidden_size: int) -> None:
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * hidden_size,
        num_labels=10,
    )
    arguments = TrainingArguments(
        str(trial_folder()),
        num_train_epochs=EPOCHS,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=128,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    Trainer(
        ViTForImageClassification(config),
        arguments,
        train_dataset=rows(X_train[:IMAGES], y_train[:IMAGES]),
        eval_dataset=rows(X_test, y_test),
        compute_metrics=lambda result: {"error": (result.predictions.argmax(1) != result.label_ids).mean()},
        callbacks=[ReportCallback()],
    ).train()


space = {
    "learning_rate": loguniform(3e-4, 3e-2),
    "weight_decay": loguniform(1e-4, 0.1),
    "hidden_size": choice([16, 32, 64]),
}
scheduler = ASHA(metric="error", resource_attr="epoch", max_t=EPOCHS, grace_period=3)
experiment = Tuner(train, space, scheduler, StoppingCriterion(max_num_trials_started=TRIALS), n_workers=2).run()
print(f"best: {experiment.best}")
