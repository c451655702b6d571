"""Small networks of "Dive into Deep Learning". Weights are drawn from torch's global generator.

LeNet and DropoutMLP take images (B, 1, 28, 28) and return logits (B, classes); B is the batch size.
"""

from torch import Tensor, nn
from torch.nn.functional import relu


class LeNet(nn.Module):
    """LeNet-5 as in section 7.6: two convolutions with sigmoids, average pooling, three linear layers.

    61,706 parameters for ten classes, Xavier-uniform weights. The sigmoids make it slow to start: it stays at chance
    level for some hundred steps. Use `Data.standardized` if there are few images.
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
        for layer in self.net:
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits


class DropoutMLP(nn.Module):
    """The perceptron with two hidden layers and dropout of section 5.6.

    Args:
        num_hiddens_1: units of the first hidden layer; `num_hiddens_2` of the second.
        dropout_1: fraction of the first layer's outputs set to zero in training, in [0, 1); `dropout_2` likewise.
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


class Residual(nn.Module):
    """The residual block of section 8.6, from and to images (B, channels, height, width).

    x --3x3, norm, ReLU, 3x3, norm--+--> ReLU
    |---------- or 1x1 -------------|

    Args:
        num_inputs: channels of the input; `num_outputs` of the output.
        stride: 2 halves height and width.
    """

    def __init__(self, num_inputs: int, num_outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(num_inputs, num_outputs, kernel_size=3, stride=stride, padding=1, bias=False),
            *(nn.BatchNorm2d(num_outputs), nn.ReLU()),
            nn.Conv2d(num_outputs, num_outputs, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
        )
        is_same = num_inputs == num_outputs and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(num_inputs, num_outputs, kernel_size=1, stride=stride)

    def forward(self, images: Tensor) -> Tensor:
        return relu(self.net(images) + self.shortcut(images))
