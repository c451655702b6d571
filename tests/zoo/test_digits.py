"""scikit-learn's digits: what they are, and that the split never changes."""

import hashlib
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from late import Late
from program_runs import LoadedInterpreter

from fanwise import zoo

datasets = Late("sklearn.datasets")


@pytest.fixture(scope="module", autouse=True)
def scikit_learn_sets_the_environment_when_loaded() -> None:
    assert datasets.load_digits


def test_digits_have_the_shapes_and_types_of_every_data_set() -> None:
    data = zoo.digits()
    assert data.train_images.shape == (1438, 1, 28, 28)
    assert data.test_images.shape == (359, 1, 28, 28)
    assert (data.train_images.dtype, data.train_labels.dtype) == (torch.float32, torch.int64)
    assert data.classes == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    assert repr(data) == "Data(train_images: (1438, 1, 28, 28), test_images: (359, 1, 28, 28), 10 classes)"


def test_digits_lie_between_black_and_white() -> None:
    images = zoo.digits().train_images
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)


def test_at_their_own_size_digits_are_the_pixels_of_scikit_learn() -> None:
    data = zoo.digits(size=8)
    ours = torch.cat([data.train_images, data.test_images]).flatten(1)
    labels = torch.cat([data.train_labels, data.test_labels])
    theirs = datasets.load_digits()
    ours_sorted = sorted(zip(ours.mul(16).int().tolist(), labels.tolist(), strict=True))
    assert ours_sorted == sorted(zip(theirs.data.astype(int).tolist(), theirs.target.tolist(), strict=True))


def test_every_class_is_in_both_halves_in_proportion() -> None:
    data = zoo.digits(size=8)
    train, test = data.train_labels.bincount(), data.test_labels.bincount()
    assert (test / (train + test) - 0.2).abs().max() < 0.003


def test_labels_are_mixed_so_that_a_part_of_the_training_images_holds_all_classes() -> None:
    assert len(set(zoo.digits(size=8).train_labels[:100].tolist())) == 10


def test_the_split_is_the_same_for_ever() -> None:
    data = zoo.digits(size=8)
    words = (data.test_images * 16).to(torch.uint8).numpy().tobytes() + data.train_labels.numpy().tobytes()
    assert hashlib.sha256(words).hexdigest()[:16] == "489bed1bf65f849e"


@pytest.mark.parametrize(
    "state",
    [random.getstate, lambda: torch.get_rng_state().tolist(), lambda: str(np.random.get_state())],
    ids=["random", "torch", "numpy"],
)
def test_loading_neither_reads_nor_moves_a_global_random_state(state: Callable[[], object]) -> None:
    before = state()
    first = zoo.digits(size=8)
    assert state() == before
    random.seed(7)
    assert torch.equal(zoo.digits(size=8).test_images, first.test_images)


def test_two_calls_share_no_memory() -> None:
    zoo.digits(size=8).train_images.zero_()
    assert zoo.digits(size=8).train_images.any()


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        zoo.digits(size=0)


def test_importing_the_zoo_loads_no_library() -> None:
    code = "import sys, fanwise.zoo\nassert not {'torch', 'numpy', 'sklearn', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_loading_digits_loads_no_scikit_learn(torch_loaded: LoadedInterpreter, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys, fanwise.zoo\nfanwise.zoo.digits()\nprint('sklearn' in sys.modules)")
    done = torch_loaded.run(script, folder=tmp_path)
    assert done.said == "False\n"


def test_standardized_images_have_mean_zero_and_deviation_one_over_the_training_half() -> None:
    data = zoo.digits()
    standard = data.standardized()
    assert standard.train_images.mean().abs() < 1e-4
    assert (standard.train_images.std() - 1).abs() < 1e-4
    back = standard.test_images * data.train_images.std() + data.train_images.mean()
    assert torch.allclose(back, data.test_images, atol=1e-5)
    assert standard.train_labels is data.train_labels


def test_images_of_one_grey_cannot_be_standardized() -> None:
    grey = torch.full((2, 1, 4, 4), 0.5)
    with pytest.raises(ValueError, match="all pixels"):
        zoo.Data(grey, torch.zeros(2), grey, torch.zeros(2), ("0",)).standardized()


def test_an_unknown_name_of_the_zoo_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'AlexNet'; it has .*LeNet"):
        _ = zoo.AlexNet  # type: ignore[attr-defined]
    assert {"LeNet", "digits", "train_epoch"} <= set(dir(zoo))
