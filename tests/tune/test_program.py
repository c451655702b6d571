"""The program of a search, kept beside its record."""

from pathlib import Path

import torch

from fanwise.tune.program import load_program, save_program
from fanwise.tune.schedulers import FIFO
from fanwise.tune.space import Space, uniform


def test_program_with_a_float8_tensor_is_saved_and_loaded(tmp_path: Path) -> None:
    table = torch.ones(2).to(torch.float8_e4m3fn)
    save_program(tmp_path, lambda: table, FIFO(metric="loss"), Space({"x": uniform(0, 1)}))
    objective, _, _ = load_program(tmp_path)
    assert objective().dtype is torch.float8_e4m3fn
