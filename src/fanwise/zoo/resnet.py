"""The residual block of "Dive into Deep Learning" 8.6, the brick of ResNets, as a plain module.

    x --3x3, norm, ReLU, 3x3, norm--+--> ReLU
    |---------- or 1x1 -------------|

Takes and gives images (B, channels, height, width). Weights are drawn from torch's global generator.
"""

from torch import Tensor, nn
from torch.nn.functional import relu


class Residual(nn.Module):
    """Two convolutions around which the input may pass.

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
        self.beside = nn.Identity() if is_same else nn.Conv2d(num_inputs, num_outputs, kernel_size=1, stride=stride)

    def forward(self, images: Tensor) -> Tensor:
        return relu(self.net(images) + self.beside(images))
