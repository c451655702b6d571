"""The signature of an objective is compared with the names of the space."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from fanwise.tune.signatures import check_signature


def plain(lr: float, batch_size: int, epochs: int = 10) -> None: ...


def anything(lr: float, **options: object) -> None: ...


def unnamed(lr: float, /, epochs: int) -> None: ...


def first_unnamed(a: int = 1, /, **options: object) -> None: ...


class Trains:
    def __init__(self, lr: float) -> None: ...

    def run(self, lr: float, epochs: int) -> None: ...

    def __call__(self, lr: float, momentum: float) -> None: ...


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (plain, ["lr", "batch_size"]),
        (plain, ["epochs", "batch_size", "lr"]),
        (anything, ["lr", "width", "depth"]),
        (first_unnamed, ["a", "b"]),
        (Trains, ["lr"]),
        (Trains(1).run, ["lr", "epochs"]),
        (Trains(1), ["lr", "momentum"]),
        (functools.partial(plain, batch_size=5), ["lr"]),
        (functools.partial(plain, batch_size=5), ["lr", "batch_size"]),
        (functools.partial(plain, 0.1), ["batch_size"]),
        (lambda: None, []),
        (dict, ["whatever"]),
    ],
)
def test_fitting_names_pass(function: Callable[..., Any], names: list[str]) -> None:
    check_signature(function, names)


@pytest.mark.parametrize(
    ("function", "names", "problems"),
    [
        (
            plain,
            ["lr"],
            ["argument 'batch_size' is not in the space: add it (a constant will do) or give it a default"],
        ),
        (
            plain,
            ["lr", "batchsize"],
            [
                "argument 'batch_size' is not in the space: add it (a constant will do) or give it a default",
                "the space has 'batchsize', which is not an argument: did you mean 'batch_size'?",
            ],
        ),
        (
            plain,
            ["lr", "batch_size", "zeta"],
            ["the space has 'zeta', which is not an argument: add it to the arguments, or take it out of the space"],
        ),
        (
            unnamed,
            ["lr", "epochs"],
            ["argument 'lr' is positional-only, and values are passed by name: remove the '/'"],
        ),
        (
            functools.partial(plain, 0.1, 5),
            ["lr"],
            ["the space has 'lr', which is not an argument: add it to the arguments, or take it out of the space"],
        ),
        (
            Trains(1).run,
            ["lr"],
            ["argument 'epochs' is not in the space: add it (a constant will do) or give it a default"],
        ),
    ],
)
def test_misfits_are_named(function: Callable[..., Any], names: list[str], problems: list[str]) -> None:
    with pytest.raises(ValueError, match="does not fit the space:\n") as caught:
        check_signature(function, names)
    assert str(caught.value).split("\n")[1:] == [f"  {problem}" for problem in problems]


def test_an_argument_that_some_configurations_leave_out_needs_a_default() -> None:
    check_signature(plain, ["lr", "batch_size", "epochs"], sometimes=["epochs"])
    with pytest.raises(ValueError) as caught:
        check_signature(plain, ["lr", "batch_size"], sometimes=["batch_size"])
    assert str(caught.value).split("\n")[1:] == [
        "  argument 'batch_size' does not exist in every configuration: give it a default, batch_size=None"
    ]


def test_the_signature_is_shown() -> None:
    with pytest.raises(ValueError) as caught:
        check_signature(plain, [])
    assert str(caught.value).startswith("plain(lr: float, batch_size: int, epochs: int = 10) does not fit the space:")
