"""The residual block keeps or halves the image, and lets it pass beside the convolutions."""

import pytest
import torch

from fanwise.zoo import Residual


@pytest.mark.parametrize(
    ("channels", "stride", "shape"), [(3, 1, (2, 3, 8, 8)), (6, 1, (2, 6, 8, 8)), (6, 2, (2, 6, 4, 4))]
)
def test_the_output_has_the_channels_and_the_size_that_were_asked_for(
    channels: int, stride: int, shape: tuple[int, ...]
) -> None:
    assert Residual(3, channels, stride)(torch.rand(2, 3, 8, 8)).shape == shape


def test_without_weights_the_input_passes() -> None:
    block = Residual(2, 2)
    for parameter in block.parameters():
        torch.nn.init.zeros_(parameter)
    images = torch.randn(2, 2, 4, 4)
    assert torch.equal(block(images), images.relu())
