"""Takes about 1 minute: the demo's search on the nodes of a Ray cluster. One argument is changed: `pool=Pool(ray=...)`.

Start a cluster first, on this machine or several, each with this Python and fanwise[ray] installed:

    ray start --head                            here
    ray start --address=10.0.0.1:6379           on every other node, with the address that the first has printed

Experiments have to be where all nodes see them: on several machines set FANWISE_HOME to a shared folder.
"""

import torch

from fanwise import Pool
from fanwise.tune import FIFO, StoppingCriterion, Tuner, loguniform, randint, report
from fanwise.zoo import LeNet, digits, error_rate, train_epoch

TRIALS = 20
MAX_EPOCHS = 25
CLUSTER = "auto"  # that of this machine, or of RAY_ADDRESS; else its address


def train_lenet(learning_rate: float, batch_size: int, max_epochs: int) -> None:
    data = digits().standardised()
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum=0.8)
    for epoch in range(1, max_epochs + 1):
        train_epoch(model, optimizer, data.train_images, data.train_labels, batch_size)
        report(epoch=epoch, validation_error=error_rate(model, data.test_images, data.test_labels))


with Pool(ray=CLUSTER) as pool:
    there = pool.capacity()
    print(f"{len(there.machines)} hosts with {there.cpus} CPUs and {there.gpus} GPUs have joined", flush=True)
    experiment = Tuner(
        train_lenet,
        {"learning_rate": loguniform(0.05, 0.4), "batch_size": randint(32, 128), "max_epochs": MAX_EPOCHS},
        FIFO(metric="validation_error", mode="min"),
        StoppingCriterion(max_num_trials_started=TRIALS),
        pool=pool,
    ).run()
print(f"best: {experiment.best}")
