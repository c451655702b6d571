"""ResNet-50 (He et al., 2015, table 1), without torchvision: 23.5 million weights in 161 tensors."""

import torch
from torch import Tensor, nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first
EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions, and the way round them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self.way = nn.Sequential(
            *convolution(channels, width, 1),
            nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolution(width, out, 1),
        )
        self.shortcut = nn.Sequential(*(convolution(channels, out, 1, stride) if stride > 1 or channels != out else ()))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.way(images) + self.shortcut(images))


def convolution(channels: int, out: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """With the normalisation behind it."""
    return nn.Conv2d(channels, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out)


def stages(first: int, end: int) -> list[nn.Module]:
    """The blocks of some of the four stages."""
    channels = EXPANSION * STAGES[first - 1][0] if first else STAGES[0][0]
    blocks: list[nn.Module] = []
    for width, count, stride in STAGES[first:end]:
        for number in range(count):
            blocks.append(Bottleneck(channels, width, 1 if number else stride))
            channels = EXPANSION * width
    return blocks


def front() -> nn.Sequential:
    """From the image up to where its sides are an eighth."""
    return nn.Sequential(
        *convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1), *stages(0, 2)
    )


def back(classes: int) -> nn.Sequential:
    """From there up to the logits."""
    last = EXPANSION * STAGES[-1][0]
    return nn.Sequential(*stages(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes))
