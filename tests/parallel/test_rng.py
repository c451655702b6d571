"""Random streams of shards and samples: seeded by a key, and those of the program restored."""

import functools
import gc
import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.rng import isolated_generators, preserved_cpu_generators, seed_generators
from fanwise.tensor import Key

HIGH = 1 << 32  # the lowest bit that a seed of 32 bits does not have


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_streams_depend_on_the_key_and_those_of_the_program_continue_after_the_block() -> None:
    gc.collect()  # closes loops over shards that other tests have left, which restores the generators
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = [drawn(), drawn()]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert drawn() == expected[0]
    with isolated_generators():
        seed_generators(Key(1))
        first = drawn()
        with isolated_generators():
            seed_generators(Key(2))
            assert len({*drawn(), *first}) == 6
        seed_generators(Key(1))
        assert drawn() == first
    assert drawn() == expected[1]


def test_every_half_of_a_key_changes_all_streams() -> None:
    class Words:
        def __init__(self, *words: int) -> None:
            self.words = words

    streams = []
    with isolated_generators():
        for words in ((5, 7), (5 + HIGH, 7), (5, 7 + HIGH), (6, 7), (5, 8)):
            key: Any = Words(*words)  # Any: in place of a Key
            seed_generators(key)
            streams.append(drawn())
    assert all(len(set(stream)) == len(streams) for stream in zip(*streams, strict=True))


def test_torch_draws_uniform_numbers_after_begin() -> None:
    with isolated_generators():
        seed_generators(Key(1))
        numbers = torch.rand(100_000, dtype=torch.float64)
        normal = torch.randn(100_000)
    assert abs(numbers.mean() - 0.5) < 0.01 and abs(normal.std() - 1) < 0.01
    assert len(set(numbers.tolist())) == len(numbers)


def test_streams_are_restored_exactly_with_the_spare_normal_number_of_numpy() -> None:
    np.random.seed(3)
    expected = np.random.randn(4).tolist()
    np.random.seed(3)
    first = np.random.randn()
    with preserved_cpu_generators():
        np.random.randn()
    assert [first, *np.random.randn(3)] == expected


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.ones(8, 2))


def test_random_numbers_of_the_program_do_not_depend_on_loader_workers() -> None:
    def draw() -> tuple[float, ...]:
        return np.random.randn(), *drawn()

    def train(run: Run, workers: int, data: Any) -> list[tuple[float, ...]]:
        model = nn.Linear(2, 1)
        step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x).square().mean(1))
        np.random.seed(0)
        numbers = [draw()]
        for batch in run.batches(data, 4, num_workers=workers):
            numbers.append(draw())
            batch.whole()
            numbers.append(draw())
            step(batch)
            numbers.append(draw())
        return numbers

    for data in (Stream(), list(torch.ones(8, 2))):
        runs = [functools.partial(train, workers=workers, data=data) for workers in (0, 1)]
        assert fanwise.run(runs[0], devices=1) == fanwise.run(runs[1], devices=1)


def test_what_a_library_draws_while_it_is_loaded_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drawing_library.py").write_text(
        "import random, numpy, torch\nrandom.random(), numpy.random.random(), torch.rand(3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def draws(run: Run) -> tuple[float, float, float]:
        importlib.import_module("drawing_library")
        return random.random(), np.random.random(), torch.rand(()).item()

    hooks = list(sys.meta_path)
    try:
        first = fanwise.run(draws, devices="cpu", progress=False)
        assert "drawing_library" in sys.modules
        assert fanwise.run(draws, devices="cpu", progress=False) == first
        assert sys.meta_path == hooks
    finally:
        sys.modules.pop("drawing_library", None)
