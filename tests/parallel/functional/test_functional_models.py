"""JAX and TensorFlow models in a run: the same bits on any devices, after a kill and a resume; what wrong ones hear.

Each engine has a program, which runs where the engine has not begun: how it begins is part of what is tested.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from fanwise.testing.programs import LoadedInterpreter

HERE = Path(__file__).parent
LIBRARIES = {"jax": ("jax", "optax", "flax.linen"), "tensorflow": ("tensorflow", "keras")}
Report = Any  # Any: JSON


def is_there(engine: str) -> bool:
    return all(importlib.util.find_spec(name.partition(".")[0]) for name in LIBRARIES[engine])


def run(engine: str, loaded: LoadedInterpreter, folder: Path) -> Report:
    if not is_there(engine):
        pytest.skip(f"needs {', '.join(LIBRARIES[engine])}")
    program = HERE / f"{engine}_programs.py"
    # What JAX has compiled once no process compiles again: that is most of what such small runs cost.
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1", **cache}
    done = loaded.run(program, folder=folder, environment=environment, forks=True)
    assert done.status == 0, done.said
    return json.loads(done.out)


@pytest.fixture(scope="module")
def of_jax(engines_loaded: LoadedInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run("jax", engines_loaded, tmp_path_factory.mktemp("jax"))


@pytest.fixture(scope="module")
def of_tensorflow(engines_loaded: LoadedInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run("tensorflow", engines_loaded, tmp_path_factory.mktemp("tensorflow"))


def test_flax_and_optax_have_the_same_bits_on_any_devices_after_a_kill_and_a_resume(of_jax: Report) -> None:
    assert len(of_jax["equal"]) == 4
    assert len({tuple(each) for each in of_jax["equal"].values()}) == 1


def test_a_keras_model_has_the_same_bits_on_any_devices_after_a_kill_and_a_resume(of_tensorflow: Report) -> None:
    assert len(of_tensorflow["equal"]) == 4
    assert len({tuple(each) for each in of_tensorflow["equal"].values()}) == 1


def test_a_loss_is_an_array_of_jax(of_jax: Report) -> None:
    assert of_jax["kinds"] == ["ArrayImpl"]


def test_a_step_is_that_of_the_whole_batch(of_jax: Report) -> None:
    assert max(of_jax["beside"]) < 1e-4


def test_gradients_are_added_in_memory_of_their_own(of_jax: Report) -> None:
    assert len(set(of_jax["argument"])) == 1


def test_a_checkpoint_holds_tensors_by_the_paths_of_the_leaves(of_jax: Report, of_tensorflow: Report) -> None:
    found = of_jax["checkpoint"]
    assert "['Dense_0']['kernel']" in found["model"]
    assert "[1][0].mu['Dense_0']['kernel']" in found["optimizer"]
    statistics = [f"['batch_stats']['BatchNorm_0']['{name}']" for name in ("mean", "var")]
    assert found["buffers"] == [*statistics, "['steps']"]
    assert found["step"] == ["batches", "executions", "updates"]
    assert of_tensorflow["checkpoint"] == [f"[{place}]" for place in range(6)]


def test_an_engine_with_other_threads_than_the_run_is_refused(of_jax: Report, of_tensorflow: Report) -> None:
    assert "JAX has begun in this process with 1 threads" in of_jax["threads"]
    assert "a device of this run has 2" in of_jax["threads"]
    assert "TensorFlow has begun in this process with 1 threads" in of_tensorflow["threads"]
    assert "TF_NUM_INTRAOP_THREADS=2 in the environment" in of_tensorflow["threads"]


NO_MODEL = "TypeError: params must be a torch.nn.Module, or a tree of arrays of JAX or TensorFlow, got"
OF_JAX = {
    "no arrays": f"{NO_MODEL} dict.",
    "a list": f"{NO_MODEL} list.",
    "NumPy arrays": f"{NO_MODEL} NumPy arrays.",
    "two engines": "TypeError: params['b'] is a Tensor, no JAX array.",
    "whole numbers": "TypeError: params['n'] is int32, of which there is no gradient.",
    "optax as it is": "TypeError: update is a GradientTransformationExtraArgs, not a function.",
    "its update": "TypeError: update is that of an optax transformation, which returns changes of the parameters",
    "chained": "TypeError: update is that of an optax transformation, which returns changes of the parameters",
    "no pair": "TypeError: update must return (new params, new state), got dict.",
    "another tree": "ValueError: update returned params of another shape as a tree.",
    "another shape": "ValueError: update returned params of which ['w'] is float32 (5,), and was float32 (784,)",
    "another state": "ValueError: update returned a state of another shape as a tree.",
    "one for two": "ValueError: loss_fn got 2 samples and returned an array of shape (1,)",
    "logits": "TypeError: loss_fn returned two arrays, losses of shape (2,) and float32 of shape (2, 784).",
    "three": "TypeError: loss_fn must return an array of losses, or (losses, counts), got tuple of 3.",
    "no buffers": "TypeError: with buffers= loss_fn must return (losses, buffers)",
    "other buffers": "ValueError: loss_fn returned buffers of which ['n'] is float32 (1,), and was float32 (2,)",
    "parted": "ValueError: buffers['n'] is not the same after every shard of the batch",
    "each its own key": "ValueError: buffers['n'] is not the same after every shard of the batch",
    "counter": "ValueError: loss_fn was traced twice, and was not the same function",
    "noise": "ValueError: loss_fn was traced twice, and was not the same function",
    "clip_norm": "TypeError: clip_norm=: for torch models.",
    "texts": "TypeError: a part of the batch is of type <U1, of which JAX makes no arrays.",
    "nothing wrong": "nothing",
}
OF_TENSORFLOW = {
    "variables": "TypeError: params['w'] is a tf.Variable, which a step cannot replace; give values:",
    "NumPy arrays": f"{NO_MODEL} NumPy arrays.",
    "another tree": "ValueError: update returned params of another shape as a tree.",
    "no pair": "TypeError: update must return (new params, new state), got dict.",
    "one for two": "ValueError: loss_fn got 2 samples and returned an array of shape (1,)",
    "random": "ValueError: loss_fn draws random numbers by RandomUniform, whose next ones depend on",
    "assigns": "ValueError: loss_fn assigns to a variable (AssignAddVariableOp)",
    "counter": "ValueError: loss_fn was traced twice, and was not the same function",
    "nothing wrong": "nothing",
}


@pytest.mark.parametrize("case", OF_JAX)
def test_a_wrong_program_of_jax_hears_what_is_wrong(of_jax: Report, case: str) -> None:
    assert of_jax["said"][case].startswith(OF_JAX[case])
    assert set(of_jax["said"]) == set(OF_JAX)


@pytest.mark.parametrize("case", OF_TENSORFLOW)
def test_a_wrong_program_of_tensorflow_hears_what_is_wrong(of_tensorflow: Report, case: str) -> None:
    assert of_tensorflow["said"][case].startswith(OF_TENSORFLOW[case])
    assert set(of_tensorflow["said"]) == set(OF_TENSORFLOW)
