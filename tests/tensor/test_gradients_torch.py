"""Gradients of torch only: no trace in the caller's tensors, hooks, and torch.func inside."""

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fanwise.tensor import grad, jit, value_and_grad, vjp


@pytest.fixture(scope="module", autouse=True)
def torch_keeps_what_it_compiles_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its compiler, which torch.func loads, else adds the variable to the environment in the middle of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
        yield


def test_grad_and_requires_grad_of_the_callers_tensors_do_not_change() -> None:
    plain, wanted, parameter = torch.ones(2), torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(2))
    wanted.grad = torch.full((2,), 7.0)
    tree = [plain, wanted, parameter]
    result = grad(lambda tree: (tree[0] * tree[1] * tree[2]).sum())(tree)
    vjp(lambda tree: tree[0] * tree[1] * tree[2], tree)[1](torch.ones(2))
    assert [x.requires_grad for x in tree] == [False, True, True]
    assert plain.grad is None and parameter.grad is None and torch.equal(wanted.grad, torch.full((2,), 7.0))
    assert all(torch.equal(g, torch.ones(2)) for g in result)


def test_results_have_no_history() -> None:
    w = nn.Parameter(torch.ones(2))
    (value, aux), gradient = value_and_grad(lambda w: ((w * w).sum(), {"twice": w * 2}), has_aux=True)(w)
    y, pullback = vjp(lambda w: w * w, w)
    for x in (value, aux["twice"], gradient, y, *pullback(torch.ones(2))):
        assert not x.requires_grad


def test_the_graph_of_a_call_is_freed() -> None:
    owner: list[weakref.ref[Any]] = []  # Any: a node of torch's graph

    def f(x: Tensor) -> Tensor:
        y = (x * x).sum()
        owner.append(weakref.ref(y))
        return y

    gradient = grad(f)(torch.ones(2))
    assert owner[0]() is None and gradient.sum() == 4


def test_hooks_of_a_parameter_run_once_and_may_change_its_gradient() -> None:
    w, calls = nn.Parameter(torch.ones(2)), []

    def tripled(grad: Tensor) -> Tensor:
        calls.append(grad)
        return grad * 3

    w.register_hook(tripled)  # type: ignore[no-untyped-call]  # torch's
    assert torch.equal(grad(lambda w: (w * w).sum())(w), torch.full((2,), 6.0))
    assert len(calls) == 1


def test_a_module_is_differentiated_by_its_own_parameters() -> None:
    model = nn.Linear(3, 1)
    X = torch.ones(2, 3)
    result = grad(lambda parameters, X: model(X).sum())(dict(model.named_parameters()), X)
    assert torch.equal(result["weight"], torch.full((1, 3), 2.0)) and torch.equal(result["bias"], torch.full((1,), 2.0))
    functional = grad(lambda parameters, X: torch.func.functional_call(model, parameters, (X,)).sum())
    second = functional(dict(model.named_parameters()), X)
    assert all(torch.equal(second[name], result[name]) for name in result)


def test_the_same_parameter_twice_is_two_arguments() -> None:
    w = nn.Parameter(torch.tensor(2.0))
    assert [float(g) for g in grad(lambda pair: pair[0] * pair[1] * pair[1])([w, w])] == [4.0, 8.0]


def test_the_middle_of_a_graph_is_an_argument_like_any_other() -> None:
    w = torch.tensor(3.0, requires_grad=True)
    h = w * w
    assert float(grad(lambda h: h * h)(h)) == 18.0
    h.backward()  # type: ignore[no-untyped-call]  # torch's; the graph is whole
    assert w.grad == 6.0


def test_f_cannot_write_into_its_argument() -> None:
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="in-place"):
        grad(lambda x: x.mul_(2).sum())(x)
    assert torch.equal(x, torch.ones(2))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_gradients_work_under_no_grad_and_inference_mode(mode: Any) -> None:  # Any: a context manager of torch
    outside = torch.tensor(2.0)
    with mode():
        inside = torch.tensor(2.0)
        for x in (outside, inside):
            assert float(grad(lambda x: x**3)(x)) == 12.0 and float(grad(grad(lambda x: x**3))(x)) == 12.0
            assert float(vjp(lambda x: x**3, x)[1](1.0)[0]) == 12.0
        assert not torch.is_grad_enabled()
    assert float(grad(lambda x: x**3)(inside)) == 12.0  # made where gradients were off


def test_no_grad_inside_f_makes_constants() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            slope: Tensor = grad(lambda y: y**3)(x)
        return x * slope

    assert float(grad(f)(torch.tensor(2.0))) == 12.0
    assert float(grad(lambda x: x * grad(lambda y: y**3)(x))(torch.tensor(2.0))) == 36.0


def test_torch_func_works_inside_but_not_around() -> None:
    x = torch.tensor([1.0, 2.0])
    assert torch.equal(grad(lambda x: torch.func.grad(lambda x: (x**3).sum())(x).sum())(x), 6 * x)
    for around in (torch.func.grad, torch.func.vmap):
        with pytest.raises(TypeError, match=r"does not differentiate inside torch\.func"):
            around(grad(lambda x: x.sum()))(torch.ones(2, 2))


# -- torch.compile -----------------------------------------------------------------------------------------------------


def test_jit_does_not_compile_torch_functions() -> None:
    recorded: list[float] = []

    def noted(x: Tensor) -> Tensor:
        recorded.append(float(x.detach()))  # compiled code could not
        return torch.sin(x)

    for f in (jit(grad(noted)), grad(noted), jit(noted)):
        for start in (0.0, 1.0):
            f(torch.tensor(start))
    assert recorded == [0.0, 1.0] * 3


def test_a_wrong_leaf_is_refused_after_a_call_of_the_same_structure() -> None:
    gradient = grad(lambda x, y: (x["a"] * y).sum())
    right, y = {"a": torch.ones(2)}, torch.ones(2)
    assert gradient(right, y)["a"].tolist() == [1.0, 1.0]
    for wrong in (torch.ones(2, dtype=torch.int64), np.ones(2), np.float32(1.0), 1.0):
        with pytest.raises(TypeError):
            gradient({"a": wrong}, y)
    assert gradient({"a": torch.ones(2, dtype=torch.float64)}, y)["a"].dtype == torch.float64
