"""Takes about 20 seconds: a GAN with a loop of its own over the shards, on two devices, with the same bits as on one.

The maker draws handwritten digits of 8 x 8 pixels, the critic tells them from real ones. Each has a step; the critic's
loop runs the maker without a gradient, the maker's loop runs the critic.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import fanwise as fw
from fanwise.parallel import Run
from fanwise.zoo import digits

EPOCHS, BATCH, NOISE = 5, 128, 8

images = digits(8).train_images.flatten(1)


def train(run: Run) -> dict[str, Tensor]:
    maker = nn.Sequential(nn.Linear(NOISE, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())
    critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(64, 1))
    of_critic = run.step(critic, torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.999)))
    of_maker = run.step(maker, torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.5, 0.999)))

    for epoch in run.epochs(EPOCHS):
        for batch in run.batches(images, BATCH, drop_last=True):
            for real in of_critic.shards(batch):
                made = maker(torch.randn(len(real), NOISE)).detach()
                of_critic.backward(softplus(-critic(real)))  # each adds to the gradient of the shard
                of_critic.backward(softplus(critic(made)))
            nn.utils.clip_grad_value_(critic.parameters(), 0.5)  # the gradient of the whole batch
            of_critic.update()

            for real in of_maker.shards(batch):
                of_maker.backward(softplus(-critic(maker(torch.randn(len(real), NOISE)))))
            of_maker.update()
        run.print(f"epoch {epoch}: critic {of_critic.loss:.3f}, maker {of_maker.loss:.3f}")
    return maker.state_dict()


if __name__ == "__main__":
    two = fw.run(train, devices=["cpu"] * 2)
    one = fw.run(train, devices=["cpu"])
    assert all(torch.equal(two[name], one[name]) for name in one)
    print("the same bits on one device and on two")
