"""MXNet as a legacy: what D2L 2.1 and 2.5 do, and life as an RPC worker. Runs where MXNet does: `make test-mxnet`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mxnet", reason="MXNet needs numpy < 1.24 and an environment of its own: make test-mxnet")

import fanwise.tensor.with_mxnet as mxt

HERE = Path(__file__).resolve().parent
LIMIT_S = 100.0


def equal(x: Any, expected: object) -> bool:  # Any: an array of MXNet
    return bool(np.array_equal(mxt.to_numpy(x), np.asarray(expected)))


# -- D2L 2.1 -------------------------------------------------------------------------------------------------------


def test_arange_counts_and_has_a_size_and_a_shape() -> None:
    x = mxt.arange(12, dtype=mxt.float32)
    assert equal(x, range(12)) and mxt.size(x) == 12 and x.shape == (12,) and x.dtype == np.float32
    assert mxt.arange(2, 8, 3).dtype == np.int64 and equal(mxt.arange(2, 8, 3), [2, 5])
    assert mxt.arange(0, 1, 0.25).dtype == np.float32


def test_reshape_infers_a_length() -> None:
    assert mxt.reshape(mxt.arange(12), (3, -1)).shape == (3, 4)


def test_zeros_ones_and_lists_have_the_types_asked_for() -> None:
    assert equal(mxt.zeros((2, 3, 4)), np.zeros((2, 3, 4))) and equal(mxt.ones((2, 3, 4)), np.ones((2, 3, 4)))
    assert mxt.asarray([[2.0, 1], [4, 3]]).dtype == np.float32 and mxt.asarray([[2, 1]]).dtype == np.int64


def test_normal_numbers_repeat_with_the_seed() -> None:
    mxt.seed(7)
    first = mxt.to_numpy(mxt.normal((3, 4)))
    mxt.seed(7)
    assert np.array_equal(first, mxt.to_numpy(mxt.normal((3, 4)))) and first.shape == (3, 4) and first.std() > 0


def test_elements_and_ranges_are_read_and_written() -> None:
    x = mxt.reshape(mxt.arange(12, dtype=mxt.float32), (3, 4))
    assert equal(x[-1], [8, 9, 10, 11]) and x[1:3].shape == (2, 4)
    x[1, 2] = 17
    x[:2, :] = 12
    assert equal(x, [[12] * 4, [12] * 4, [8, 9, 10, 11]])


def test_operators_go_element_by_element() -> None:
    x, y = mxt.asarray([1.0, 2, 4, 8]), mxt.asarray([2.0, 2, 2, 2])
    assert equal(x + y, [3, 4, 6, 10]) and equal(x - y, [-1, 0, 2, 6]) and equal(x * y, [2, 4, 8, 16])
    assert equal(x / y, [0.5, 1, 2, 4]) and equal(x**y, [1, 4, 16, 64])
    assert np.allclose(mxt.to_numpy(mxt.exp(x)), np.exp([1.0, 2, 4, 8]))


def test_arrays_are_joined_compared_and_summed() -> None:
    x = mxt.reshape(mxt.arange(12, dtype=mxt.float32), (3, 4))
    y = mxt.asarray([[2.0, 1, 4, 3], [1, 2, 3, 4], [4, 3, 2, 1]])
    assert mxt.concat([x, y]).shape == (6, 4) and mxt.concat([x, y], axis=1).shape == (3, 8)
    assert (x == y).dtype == bool and int((x == y).sum()) == 2 and equal(mxt.sum(x), 66)


def test_small_integers_do_not_overflow_in_a_sum() -> None:
    assert equal(mxt.sum(mxt.asarray([100, 100], dtype="int8")), 200)


def test_shapes_are_broadcast() -> None:
    a, b = mxt.reshape(mxt.arange(3), (3, 1)), mxt.reshape(mxt.arange(2), (1, 2))
    assert equal(a + b, [[0, 1], [1, 2], [2, 3]])


def test_memory_is_kept_by_writing_in_place() -> None:
    x, y = mxt.ones((2,)), mxt.ones((2,))
    before = id(y)
    y[:] = x + y
    y += x
    assert id(y) == before and equal(y, [3, 3])


@given(
    st.sampled_from(mxt.DTYPES),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.integers(0, 1),
)
def test_numpy_arrays_come_back_as_they_were(dtype: str, shape: tuple[int, ...], fill: int) -> None:
    x = np.full(shape, fill, dtype=dtype)
    back = mxt.to_numpy(mxt.from_numpy(x))
    assert back.dtype == x.dtype and back.shape == x.shape and np.array_equal(back, x)


def test_a_mask_stays_a_mask() -> None:
    assert equal(mxt.asarray([1.0, 2, 3])[mxt.asarray([True, False, True])], [1, 3])


@pytest.mark.parametrize("dtype", ["int16", "complex64", "uint32"])
def test_types_that_mxnet_lacks_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(TypeError, match=f"no arrays of {dtype}; it has float16"):
        mxt.from_numpy(np.ones(2, dtype=dtype))


def test_one_element_becomes_a_number() -> None:
    a = mxt.asarray([3.5])
    assert (a.item(), float(a), int(a)) == (3.5, 3.5, 3)


# -- gradients -----------------------------------------------------------------------------------------------------


def test_the_gradient_of_2_x_x_is_4_x_and_nothing_accumulates() -> None:
    x = mxt.arange(4, dtype=mxt.float32)
    both = mxt.value_and_grad(lambda x: 2 * mxt.sum(x * x))
    for _ in range(2):
        value, gradient = both(x)
        assert float(value) == 28 and equal(gradient, [0, 4, 8, 12])
    assert x.grad is None


def test_gradients_have_the_form_of_the_arguments() -> None:
    def loss(parameters: dict[str, Any], x: Any) -> tuple[Any, str]:
        return mxt.sum(parameters["w"] * x) + parameters["b"], "more"

    parameters = {"w": mxt.asarray([1.0, 2.0]), "b": mxt.asarray(3.0)}
    (value, more), gradient = mxt.value_and_grad(loss, has_aux=True)(parameters, mxt.asarray([5.0, 7.0]))
    assert (float(value), more) == (22, "more") and equal(gradient["w"], [5, 7]) and equal(gradient["b"], 1)


def test_control_flow_is_followed_and_constants_have_no_gradient() -> None:
    def f(a: Any) -> Any:
        b = a * 2
        while float((b * b).sum()) < 1000:
            b = b * 2
        return mxt.sum(b) + mxt.sum(mxt.stop_gradient(a) * 5)

    assert equal(mxt.grad(f)(mxt.asarray([1.0])), [32])


def test_values_that_are_no_scalar_and_integers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scalar, got shape \(2,\)"):
        mxt.grad(lambda x: x)(mxt.ones((2,)))
    with pytest.raises(TypeError, match="float arrays of MXNet, got int64"):
        mxt.grad(mxt.sum)(mxt.asarray([1, 2]))


# -- with others ---------------------------------------------------------------------------------------------------


def test_an_mxnet_process_joins_others_as_a_worker(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/rendezvous"
    other = os.environ.get("FANWISE_OTHER_PYTHON", sys.executable)  # an environment without MXNet
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent.parent / "src")])}
    program = [str(HERE / "mxnet_program.py")]
    with (
        subprocess.Popen([sys.executable, *program, "mxnet", address], env=environment) as mxnet,
        subprocess.Popen([other, *program, "torch", address], env=environment, stdout=subprocess.PIPE) as torch,
    ):
        try:
            printed, _ = torch.communicate(timeout=LIMIT_S)
            assert mxnet.wait(LIMIT_S) == 0 and torch.returncode == 0
        finally:
            mxnet.kill()
            torch.kill()
    assert printed.decode().splitlines() == ["28.0 [0.0, 4.0, 8.0, 12.0]", "True"]
