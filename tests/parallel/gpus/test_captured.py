"""`capture=True` on a simulated accelerator: the same bits as without it, or an error."""

import json
from pathlib import Path
from typing import Any

import pytest
from program_runs import LoadedInterpreter

PROGRAM = Path(__file__).with_name("captured.py")
# 9 of 12 batches have 8 samples and 3 have 2. The first batch of each size runs without a graph.
REPLAYS = [8, 2]


@pytest.fixture(scope="module")
def report(torch_loaded: LoadedInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Any:
    done = torch_loaded.run(PROGRAM, folder=tmp_path_factory.mktemp("captured"), forks=True)
    assert done.status == 0, done.said
    return json.loads(done.out)


def test_captured_steps_have_the_bits_of_other_steps(report: Any) -> None:
    assert report["equal"] == dict.fromkeys(report["equal"], True)
    assert len(report["equal"]) == 9


def test_each_batch_size_has_a_graph_which_is_replayed_for_all_batches_but_the_first(report: Any) -> None:
    for name in ("batch norm and dropout, AdamW", "batch norm and dropout, SGD", "clipped", "data on the device"):
        assert report["replays"][name] == REPLAYS


def test_a_new_learning_rate_is_captured_anew(report: Any) -> None:
    # It is halved after two of three epochs. Batches of 2 samples come once with the new one, so without a graph.
    assert report["replays"]["learning rate schedule"] == [5, 1, 2]


def test_a_rate_that_is_new_for_each_batch_needs_a_tensor(report: Any) -> None:
    assert report["replays"]["a new rate for each batch"] == []
    assert report["replays"]["a new rate for each batch, as a tensor"] == REPLAYS
    assert report["warnings"] == 1


def test_a_scaled_loss_skips_updates_whose_gradients_are_not_finite(report: Any) -> None:
    batches, updates, _ = report["counts"]["scaled losses"]
    assert 0 < updates < batches == 12


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("waits", "ValueError: the step cannot be captured as a CUDA graph: RuntimeError: operation not permitted"),
        ("random branch", "gave other bits as a CUDA graph than without it: parameter"),
        ("counter", "gave other bits as a CUDA graph than without it: parameter"),
        ("not capturable", "right:  torch.optim.AdamW(model.parameters(), capturable=run.device.type == 'cuda')"),
    ],
)
def test_an_error_names_why_a_step_cannot_be_captured(report: Any, name: str, message: str) -> None:
    assert message in report["errors"][name]
