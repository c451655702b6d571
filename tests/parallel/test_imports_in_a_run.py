"""What a library draws while it is loaded in a run does not count: another process of the run had loaded it before."""

import importlib
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fanwise
from fanwise.parallel import Run


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
