"""Takes about 1 minute: a search whose trials train on two devices each.

A trial is an ordinary data-parallel run: its processes are jobs inside the trial's lease, `run.report` is the report of
the trial, and when the tuner stops it, all its processes leave together after the same step. The result of a trial does
not depend on its devices, so at the end the best one is trained again on a single device, and compared.
"""

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise as fw
from fanwise.parallel import Run
from fanwise.tune import FIFO, StoppingCriterion, Tuner, choice, loguniform
from fanwise.zoo import LeNet, digits

DEVICES = 2  # of each trial
TRIALS = 6
EPOCHS = 8
SEED = 20
data = digits().standardized()


def losses(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(model(images), labels, reduction="none")


def is_wrong(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return model(images).argmax(dim=1) != labels


def train(run: Run, learning_rate: float, batch_size: int) -> float:
    model = LeNet().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    step = run.step(model, optimizer, losses)
    lowest = 1.0
    for epoch in run.epochs(EPOCHS):
        for batch in run.batches((data.train_images, data.train_labels), batch_size):
            step(batch)
        error = run.mean(is_wrong, model, (data.test_images, data.test_labels))
        run.report(epoch=epoch + 1, validation_error=error)
        lowest = min(lowest, error)
    return lowest


def trial(learning_rate: float, batch_size: int) -> None:
    fw.run(functools.partial(train, learning_rate=learning_rate, batch_size=batch_size), devices=DEVICES, seed=SEED)


def main() -> None:
    tuner = Tuner(
        trial,
        {"learning_rate": loguniform(1e-4, 1e-2), "batch_size": choice([32, 64, 128])},
        FIFO(metric="validation_error", mode="min", random_seed=SEED),
        StoppingCriterion(max_num_trials_completed=TRIALS),
        n_workers=1,
        devices_per_trial=DEVICES,
    )
    best = tuner.run().best
    assert best is not None, "trials have reported"
    again = functools.partial(train, **best.config)
    alone = fw.run(again, devices=1, seed=SEED)
    print(f"trial {best.trial_id} on {DEVICES} devices: error {best.value}; the same on one: {alone}", end=", ")
    print("the same number" if alone == best.value else "which differs")


if __name__ == "__main__":
    main()
