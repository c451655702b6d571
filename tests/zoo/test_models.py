"""The networks, the training step and the error rate."""

import math

import pytest
import torch
from torch import nn

from fanwise.zoo import DropoutMLP, LeNet, Residual, digits, error_rate, train_epoch


@pytest.fixture(scope="module", autouse=True)
def optimizers_are_loaded() -> None:
    """The first optimizer of a process loads torch's compiler, which sets an environment variable for good."""
    torch.optim.SGD(LeNet().parameters(), 0.1)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [(LeNet(), 61_706), (DropoutMLP(256, 128, 0.5, 0.2), 235_146), (LeNet(7), 61_451)],
    ids=["LeNet", "DropoutMLP", "LeNet of 7 classes"],
)
def test_a_network_has_the_size_of_the_book(model: nn.Module, parameters: int) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.rand(3, 1, 28, 28)).shape[0] == 3


def shapes(model: nn.Module) -> list[str]:
    """Type and output shape of each layer, for one image."""
    x, found = torch.rand(1, 1, 28, 28), []
    for layer in model.net.children():  # type: ignore[union-attr]  # both have a Sequential of that name
        x = layer(x)
        found.append(f"{type(layer).__name__} {'x'.join(str(length) for length in x.shape[1:])}")
    return found


def test_lenet_is_that_of_section_7_6() -> None:
    assert shapes(LeNet()) == [
        *("Conv2d 6x28x28", "Sigmoid 6x28x28", "AvgPool2d 6x14x14"),
        *("Conv2d 16x10x10", "Sigmoid 16x10x10", "AvgPool2d 16x5x5", "Flatten 400"),
        *("Linear 120", "Sigmoid 120", "Linear 84", "Sigmoid 84", "Linear 10"),
    ]


def test_dropout_mlp_is_that_of_section_5_6() -> None:
    model = DropoutMLP(20, 30, 0.5, 0.25)
    assert shapes(model) == [
        *("Flatten 784", "Linear 20", "ReLU 20", "Dropout 20"),
        *("Linear 30", "ReLU 30", "Dropout 30", "Linear 10"),
    ]
    assert [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)] == [0.5, 0.25]


def test_lenet_starts_xavier_uniform() -> None:
    for name, weight in LeNet().named_parameters():
        if name.endswith("weight"):
            fan_out, fan_in = weight.shape[0] * weight[0, 0].numel(), weight[0].numel()
            bound = math.sqrt(6 / (fan_in + fan_out))
            assert 0.9 * bound < weight.abs().max() <= bound


def test_networks_of_one_seed_are_equal_and_of_another_are_not() -> None:
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        weights.append(next(LeNet().parameters()))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


class Recorder(nn.Module):
    """Remembers which images it saw; guesses class 0 for even ones and class 1 for odd ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []
        self.modes: list[bool] = []
        self.with_graph: list[bool] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append([int(image) for image in images])
        self.modes.append(self.training)
        self.with_graph.append(torch.is_grad_enabled())
        return nn.functional.one_hot(images.long() % 2, 2).float() + self.weight


def test_an_epoch_shows_every_image_once_in_an_order_of_the_generator() -> None:
    orders = []
    for seed in (1, 1, 2):
        model = Recorder().eval()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train_epoch(model, optimizer, torch.arange(10), torch.zeros(10).long(), 4, torch.Generator().manual_seed(seed))
        assert [len(batch) for batch in model.seen] == [4, 4, 2]
        assert model.modes == [True] * 3
        orders.append([image for batch in model.seen for image in batch])
    assert sorted(orders[0]) == list(range(10))
    assert orders[0] == orders[1] != orders[2]


def test_the_loss_of_an_epoch_counts_every_image_alike() -> None:
    model = Recorder()
    images, labels = torch.arange(5), torch.tensor([0, 1, 0, 1, 1])
    loss = train_epoch(model, torch.optim.SGD(model.parameters(), 0.0), images, labels, batch_size=4)
    right, wrong = math.log(1 + math.exp(-1)), math.log(1 + math.e)
    assert loss == pytest.approx((4 * right + wrong) / 5)


def test_an_epoch_takes_one_step_a_batch_with_its_own_gradient_alone() -> None:
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    train_epoch(model, torch.optim.SGD(model.parameters(), 1.0), torch.ones(2, 1), torch.zeros(2).long(), batch_size=1)
    after_one = 0.5
    after_two = after_one + 1 / (1 + math.exp(2 * after_one))
    assert model.weight[0].item() == pytest.approx(after_two)


@pytest.mark.parametrize("batch_size", [1, 3, 4, 7, 100])
def test_the_error_rate_is_exact_for_every_batch_size(batch_size: int) -> None:
    labels = torch.tensor([0, 1, 0, 1, 1, 1, 1])
    assert error_rate(Recorder(), torch.arange(7), labels, batch_size) == 2 / 7


@pytest.mark.parametrize("training", [True, False])
def test_the_error_rate_keeps_no_graph_and_leaves_the_mode_as_it_was(training: bool) -> None:
    model = Recorder().train(training)
    error_rate(model, torch.arange(7), torch.zeros(7).long())
    assert model.modes == [False]
    assert model.training is training
    assert model.with_graph == [False]


@pytest.mark.parametrize(("count", "labels", "batch_size"), [(0, 0, 4), (3, 2, 4), (3, 3, 0)])
def test_impossible_sizes_are_refused(count: int, labels: int, batch_size: int) -> None:
    model = Recorder()
    with pytest.raises(ValueError, match="at least 1"):
        error_rate(model, torch.arange(count), torch.zeros(labels).long(), batch_size)
    with pytest.raises(ValueError, match="at least 1"):
        train_epoch(
            model, torch.optim.SGD(model.parameters(), 0.1), torch.arange(count), torch.zeros(labels).long(), batch_size
        )


def test_lenet_learns_the_digits() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        data, model = digits().standardized(), LeNet()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # SGD would need 12 epochs
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            train_epoch(model, optimizer, data.train_images, data.train_labels, 32, generator)
        assert error_rate(model, data.test_images, data.test_labels) < 0.3
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("channels", "stride", "shape"), [(3, 1, (2, 3, 8, 8)), (6, 1, (2, 6, 8, 8)), (6, 2, (2, 6, 4, 4))]
)
def test_residual_block_has_the_requested_channels_and_size(channels: int, stride: int, shape: tuple[int, ...]) -> None:
    assert Residual(3, channels, stride)(torch.rand(2, 3, 8, 8)).shape == shape


def test_residual_block_without_weights_passes_the_input() -> None:
    block = Residual(2, 2)
    for parameter in block.parameters():
        torch.nn.init.zeros_(parameter)
    images = torch.randn(2, 2, 4, 4)
    assert torch.equal(block(images), images.relu())
