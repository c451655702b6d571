"""Takes about 1 minute: four trials at a time on one GPU, or two at a time on CPUs if there is none.

A small network leaves most of a GPU idle. With a share of it for each trial, their kernels run at the same time under
NVIDIA's Multi-Process Service, which fanwise starts and ends. A trial that needs more memory than its share is repeated
once with the whole GPU.
"""

import torch

from fanwise import Pool
from fanwise.tune import ASHA, StoppingCriterion, Tuner, loguniform, randint, report
from fanwise.zoo import LeNet, digits, error_rate, train_epoch

TRIALS = 16
MAX_EPOCHS = 9
TRIALS_PER_GPU = 4


def train(learning_rate: float, batch_size: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"  # a trial sees its own GPU only
    data, model = digits().standardized(), LeNet().to(device)
    train_images, train_labels = data.train_images.to(device), data.train_labels.to(device)
    test_images, test_labels = data.test_images.to(device), data.test_labels.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    for epoch in range(1, MAX_EPOCHS + 1):
        train_epoch(model, optimizer, train_images, train_labels, batch_size)
        report(epoch=epoch, error=error_rate(model, test_images, test_labels))


space = {"learning_rate": loguniform(1e-4, 3e-2), "batch_size": randint(32, 256)}
scheduler = ASHA(metric="error", resource_attr="epoch", max_t=MAX_EPOCHS)
stop = StoppingCriterion(max_num_trials_started=TRIALS)
with Pool(on_oom="retry_alone") as pool:
    gpus = len(pool.machine.gpus)
    settings = {"devices_per_trial": 1 / TRIALS_PER_GPU} if gpus else {"n_workers": 2}
    print(f"{gpus} GPUs; {TRIALS_PER_GPU * gpus or 2} trials at a time", flush=True)
    experiment = Tuner(train, space, scheduler, stop, pool=pool, **settings).run()
print(f"best: {experiment.best}")
