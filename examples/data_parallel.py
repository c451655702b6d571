"""Takes about 15 seconds: one network trained on 1, 2 and 4 devices (D2L 13.6), with the same result bit for bit."""

import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise as fw
from fanwise.parallel import Run
from fanwise.zoo import LeNet, digits

DEVICES = (1, 2, 4)  # each a process with one thread, on this machine; 4 share 2 CPUs if there are no more
SHARDS = 4  # as many as the most devices that shall train it
BATCH_SIZE, LR = 32, 0.5
EPOCHS = 12
data = digits().standardized()  # or zoo.fashion_mnist(folder), with BATCH_SIZE = 256 and LR = 0.1


def losses(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(model(images), labels, reduction="none")  # one loss for each image


def is_right(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return model(images).argmax(dim=1) == labels


def train(run: Run) -> tuple[nn.Module, float]:
    model = LeNet().to(run.device)  # a plain module: no wrapper
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.5)
    step = run.step(model, optimizer, losses)
    seconds = 0.0
    for epoch in run.epochs(EPOCHS):
        start_s = time.perf_counter()
        for batch in run.batches((data.train_images, data.train_labels), BATCH_SIZE):
            step(batch)  # the sum over all devices, divided by the size of the batch
        seconds += time.perf_counter() - start_s
        run.report(epoch=epoch, accuracy=run.mean(is_right, model, (data.test_images, data.test_labels)))
    accuracy = run.rows[-1]["accuracy"]
    done = f"{run.executions} shards in {run.world_size} processes"
    run.print(f"test acc: {accuracy:.2f}, {seconds / EPOCHS:.1f} sec/epoch, {done}")
    return model, accuracy


if __name__ == "__main__":
    print(f"{EPOCHS} epochs on {', '.join(map(str, DEVICES))} devices, {SHARDS} shards:", flush=True)
    models = [fw.run(train, devices=devices, shards=SHARDS)[0] for devices in DEVICES]
    bits = [torch.cat([value.flatten() for value in model.state_dict().values()]) for model in models]
    print("same bits:", all(torch.equal(bits[0], other) for other in bits))
