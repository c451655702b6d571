"""`at` and `State` on torch and numpy: in place, under autograd, and indices that a GPU does not check."""

from typing import Any, cast

import numpy as np
import pytest
import torch

from fanwise.tensor import State, at


def test_second_gradients_flow_through_at() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([2.0, 4.0, 3.0], dtype=torch.float64, requires_grad=True)
    for how in ("set", "add", "subtract", "multiply", "divide"):
        for index in (slice(None, None, -1), [0, 2, 1], [1, 1, 0] if how in ("add", "subtract") else [1, 2, 0]):

            def changed(x: torch.Tensor, v: torch.Tensor, how: str = how, index: object = index) -> torch.Tensor:
                return cast(torch.Tensor, getattr(at(x)[index], how)(v))

            assert torch.autograd.gradgradcheck(changed, (x, v))


def test_one_element_may_be_read_with_a_negative_step() -> None:
    assert at(torch.tensor([[1.0, 2.0]]))[0, 1:0:-1].get().tolist() == [2.0]


def test_a_write_that_fails_leaves_the_array_as_it_was() -> None:
    wrong: list[tuple[Any, type[Exception]]] = [(3, IndexError), ([0, 3, 1], IndexError), (slice(2), ValueError)]
    for x in (np.zeros(3), torch.zeros(3, dtype=torch.float64)):
        for index, error in wrong:
            with pytest.raises(error):
                State(x, copy=False)[index] = x + 1
        assert x.tolist() == [0.0, 0.0, 0.0]


def test_numbers_of_numpy_are_numbers() -> None:
    assert at(torch.zeros(2))[0].set(np.float64(1.5)).tolist() == [1.5, 0.0]


def test_values_are_converted_to_the_dtype_of_the_array() -> None:
    x = torch.zeros(2, dtype=torch.float16)
    for index in (0, [0]):
        result = at(x)[index].add(torch.tensor(1.0, dtype=torch.float64))
        assert result.dtype == torch.float16 and result.tolist() == [1.0, 0.0]
    assert at(torch.zeros(2, dtype=torch.int16))[1].set(torch.tensor(True)).tolist() == [0, 1]


def test_a_state_is_not_part_of_the_graph() -> None:
    x = torch.ones(2, requires_grad=True)
    state = State(x)
    state[0] = x[1] * 3
    state += x
    assert not state.value.requires_grad and state.value.tolist() == [4.0, 2.0]
    assert x.tolist() == [1.0, 1.0]


def test_a_state_adopts_the_array_with_copy_false() -> None:
    for x in (np.zeros(2, np.float32), torch.zeros(2)):
        state = State(x, copy=False)
        state[:] = 2.0
        state /= 4.0
        assert x.tolist() == state.value.tolist() == [0.5, 0.5]
        other = State(x)
        other[:] = state
        other -= state
        assert other.value.tolist() == [0.0, 0.0] and x.tolist() == [0.5, 0.5]


def test_an_index_array_inside_torch_func_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # torch.func sets it
    with pytest.raises(TypeError, match=r"inside torch\.func and torch\.vmap an index is of integers and slices"):
        torch.func.grad(lambda x: at(x)[[0, 1]].get().sum())(torch.ones(2))
    assert torch.func.grad(lambda x: (at(x)[1].multiply(x[0]) ** 2).sum())(torch.tensor([2.0, 3.0])).tolist() == [
        40,
        24,
    ]
