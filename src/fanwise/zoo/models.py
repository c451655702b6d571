"""Three small networks of "Dive into Deep Learning", as plain modules without any wrapper.

All take images (B, 1, 28, 28) and return logits (B, classes); B is the batch size. Weights are drawn from
torch's global generator, so `torch.manual_seed` (or the job's seed, in a worker) decides them.
"""

from torch import Tensor, nn


class LeNet(nn.Module):
    """LeNet-5 as in section 7.6: two convolutions with sigmoids, average pooling, three linear layers.

    61,706 parameters for ten classes. Weights are Xavier-uniform. With sigmoids it is slow to start: it
    stays at chance for some hundred steps. On few images give it standardised ones (`Data.standardised`).
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 6, kernel_size=5, padding=2), nn.Sigmoid(), nn.AvgPool2d(2)),
            *(nn.Conv2d(6, 16, kernel_size=5), nn.Sigmoid(), nn.AvgPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(400, 120), nn.Sigmoid()),
            *(nn.Linear(120, 84), nn.Sigmoid()),
            nn.Linear(84, num_classes),
        )
        self.apply(_xavier)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits


class DropoutMLP(nn.Module):
    """The perceptron with two hidden layers and dropout of section 5.6.

    Args:
        num_hiddens_1: units of the first hidden layer; `num_hiddens_2` of the second.
        dropout_1: part of the first layer's outputs set to zero in training, in [0, 1); `dropout_2` likewise.
        num_outputs: classes.
    """

    def __init__(
        self,
        num_hiddens_1: int,
        num_hiddens_2: int,
        dropout_1: float,
        dropout_2: float,
        num_outputs: int = 10,
    ) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(),
            *(nn.Linear(784, num_hiddens_1), nn.ReLU(), nn.Dropout(dropout_1)),
            *(nn.Linear(num_hiddens_1, num_hiddens_2), nn.ReLU(), nn.Dropout(dropout_2)),
            nn.Linear(num_hiddens_2, num_outputs),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits


class TwoConvNet(nn.Module):
    """The network of section 13.5, written there by hand for training on several devices.

    Weights are normal with deviation 0.01, biases zero. The book trains it with a learning rate of 0.2.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 20, kernel_size=3), nn.ReLU(), nn.AvgPool2d(2)),
            *(nn.Conv2d(20, 50, kernel_size=5), nn.ReLU(), nn.AvgPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(800, 128), nn.ReLU()),
            nn.Linear(128, num_classes),
        )
        self.apply(_small_normal)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits


def _xavier(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)


def _small_normal(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.normal_(module.weight, std=0.01)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
