"""Which tests would notice: the library broken on purpose, in one place at a time, and the tests that must fail then.

Each mutant is a line of gradients, keys, exchange, `at` or `State` with something wrong in it. A copy of the library
gets it, and the tests named beside it run with that copy: `make soak ARGS=tests/tensor/test_mutants.py`, some minutes.
The ordinary tests only see to it that the list still fits the library.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import fanwise

LIBRARY = Path(fanwise.__file__).parent
ROOT = Path(__file__).resolve().parents[2]


class Mutant(NamedTuple):
    """What is wrong, where, and who must notice: a file of tests, and words of their names as `-k` takes them."""

    name: str
    file: str
    sound: str
    broken: str
    tests: str
    words: str = ""


GRADIENTS = [
    Mutant(
        "gradients of JAX are not conjugated",
        "with_jax/gradients.py",
        "return (value, _conjugates(grads), aux)",
        "return (value, list(grads), aux)",
        "test_gradients_complex.py",
        "step_against_it",
    ),
    Mutant(
        "cotangents of JAX are not conjugated",
        "with_jax/gradients.py",
        "_conjugates(pull_back(_conjugates(whole))[0])",
        "_conjugates(pull_back(whole)[0])",
        "test_gradients_complex.py",
        "what_a_later_loss",
    ),
    Mutant(
        "what f does not use has gradient 1 in torch",
        "with_torch/gradients.py",
        "torch.zeros_like(x) if grad is None else grad",
        "torch.ones_like(x) if grad is None else grad",
        "test_gradients.py",
        "not_used_gets_zeros",
    ),
    Mutant(
        "a Parameter given twice is one argument",
        "with_torch/gradients.py",
        "if num_own > 1 and",
        "if num_own > 9 and",
        "test_gradients_torch.py",
        "same_parameter_twice",
    ),
    Mutant(
        "what comes back from torch has a history",
        "with_torch/gradients.py",
        "return (value.detach(), grads, [x.detach() for x in aux] if aux else aux), passed",
        "return (value, grads, aux), passed",
        "test_gradients_torch.py",
        "has_no_history",
    ),
    Mutant(
        "an inner gradient of torch is not connected to the outer one",
        "with_torch/gradients.py",
        "connected = depth > 0\n",
        "connected = False\n",
        "test_gradients.py",
        "second_derivative_of_sin",
    ),
    Mutant(
        "a tensor given twice is one argument in TensorFlow",
        "with_tensorflow/gradients.py",
        "inputs = [x if isinstance(x, tf.Variable) else tf.identity(x) for x in",
        "inputs = [x for x in",
        "test_gradients.py",
        "same_array_twice",
    ),
    Mutant(
        "gradients by rows stay rows",
        "with_tensorflow/gradients.py",
        "return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad",
        "return grad",
        "test_gradients_tensorflow.py",
        "by_rows",
    ),
    Mutant(
        "the shape of a cotangent is not looked at",
        "gradients/calls.py",
        "if tuple(given.shape) != tuple(like.shape):",
        "if False:",
        "test_gradients.py",
        "cotangent_that_does_not_fit",
    ),
    Mutant(
        "a call like the one before, but for the types of its leaves, runs as that one",
        "gradients/derivatives.py",
        "if leaves is None or [*map(type, leaves)] != types:",
        "if leaves is None:",
        "test_gradients.py",
        "all_count",
    ),
    Mutant(
        "0.0 and -0.0 are one version of compiled code",
        "gradients/compiling.py",
        "return repr(leaf) if isinstance(leaf, (float, complex)) else leaf",
        "return leaf",
        "test_gradients.py",
        "minus_zero",
    ),
    Mutant(
        "arrays given by name are not mapped",
        "gradients/mapping.py",
        "each += [0] * (len(leaves) - len(each))",
        "each += [None] * (len(leaves) - len(each))",
        "test_vmap_and_jvp.py",
        "axes_may_be_trees",
    ),
    Mutant(
        "the way back through a part has no derivative",
        "with_torch/as_torch.py",
        "        if torch.is_grad_enabled():\n            leaves",
        "        if False:\n            leaves",
        "test_gradients_tensorflow.py",
        "second_derivatives_go_through",
    ),
]
KEYS = [
    Mutant(
        "splitting and folding in a text have one mark",
        "random/keys.py",
        'return _hash(parent, b"split"',
        'return _hash(parent, b"text"',
        "test_keys.py",
        "",
    ),
    Mutant(
        "all kinds of numbers have the same words",
        "random/words.py",
        '"counter": (0, 0, attempt, purpose)',
        '"counter": (0, 0, attempt, 0)',
        "test_keys.py",
        "",
    ),
    Mutant(
        "True is half as likely",
        "random/exact.py",
        "threshold = int(p * 2.0**64)",
        "threshold = int(p * 2.0**63)",
        "test_keys_numbers.py",
        "bernoulli",
    ),
    Mutant(
        "words that favour some numbers are not drawn again",
        "random/exact.py",
        "if fair < 1 << 64:",
        "if fair > 1 << 64:",
        "test_keys_numbers.py",
        "favour",
    ),
    Mutant(
        "the logarithm in the tails is cut short",
        "random/gaussian.py",
        "return of_exponent - (f - s * (f - _polynomial(_LOG_SERIES, z) * z))",
        "return of_exponent - (f - s * f)",
        "test_keys_numbers.py",
        "exact_at_all_distances",
    ),
    Mutant(
        "compiled code takes the numbers of a key in the wrong order",
        "random/drawing.py",
        "make(words_with(key, numbers))",
        "make(words_with(key, numbers[::-1]))",
        "test_keys_at_state_on_engines.py",
        "compiled_loss_draws",
    ),
]
EXCHANGE = [
    Mutant(
        "copy=True within an engine is no copy",
        "exchange/converting.py",
        "y = taker.copied(x) if copy else x",
        "y = x",
        "test_tensor_exchange.py",
        "copy_true_copies",
    ),
    Mutant(
        "JAX shares memory that somebody may write to",
        "with_jax/exchange.py",
        'if copy or kind == "mutable":',
        "if copy:",
        "test_tensor_exchange.py",
        "does_not_change_a_constant",
    ),
    Mutant(
        "torch writes into constants",
        "with_torch/exchange.py",
        "if copy or not array.flags.writeable or _why_not_torch(array):",
        "if copy or _why_not_torch(array):",
        "test_tensor_exchange.py",
        "read_only_array or copy_of_a_constant",
    ),
    Mutant(
        "memory that is not aligned is adopted",
        "with_numpy/exchange.py",
        'if not flags.c_contiguous or told["data"][0] % ALIGNMENT:',
        "if not flags.c_contiguous:",
        "test_tensor_exchange.py",
        "lies_as_every_engine",
    ),
    Mutant(
        "JAX narrows what is 64 bits wide",
        "with_jax/exchange.py",
        "if not _config.jax_enable_x64:",
        "if False:",
        "test_tensor_exchange.py",
        "narrowed",
    ),
]
WRITING = [
    Mutant(
        "JAX adds what is to be subtracted",
        "with_jax/writing.py",
        "return x.at[index].add(-value)",
        "return x.at[index].add(value)",
        "test_keys_at_state_on_engines.py",
        "each_operation or at_means_what_numpy_means",
    ),
    Mutant(
        "torch adds once where a place is named twice",
        "with_torch/writing.py",
        "accumulate=True",
        "accumulate=False",
        "test_keys_at_state_on_engines.py",
        "each_operation or at_means_what_numpy_means",
    ),
    Mutant(
        "set writes into the array itself in torch",
        "with_torch/writing.py",
        "            y = x.clone()\n            y[index] = value\n",
        "            y = x\n            y[index] = value\n",
        "test_keys_at_state_on_engines.py",
        "each_operation or at_means_what_numpy_means",
    ),
    Mutant(
        "TensorFlow adds what is to be subtracted",
        "with_tensorflow/writing.py",
        "return tf.tensor_scatter_nd_sub(flat, column, value)",
        "return tf.tensor_scatter_nd_add(flat, column, value)",
        "test_keys_at_state_on_engines.py",
        "each_operation or at_means_what_numpy_means",
    ),
    Mutant(
        "an integer that the type does not hold is written",
        "indexing/places.py",
        "if not least <= number <= most:",
        "if False:",
        "test_keys_at_state_on_engines.py",
        "refused_alike",
    ),
    Mutant(
        "a State is written to inside vmap",
        "state.py",
        "if _is_mapped.get():",
        "if False:",
        "test_vmap_and_jvp.py",
        "state_is_read",
    ),
    Mutant(
        "a State of JAX keeps what is traced",
        "with_jax/writing.py",
        "if isinstance(new, jax.core.Tracer) and not isinstance(variable, jax.core.Tracer):",
        "if False:",
        "test_keys_at_state_on_engines.py",
        "keep_what_is_traced",
    ),
    Mutant(
        "a State of torch writes into the array that it was made of",
        "with_torch/writing.py",
        "return x.detach().clone() if copy else x.detach()",
        "return x.detach()",
        "test_keys_at_state_on_engines.py",
        "same_on_all_engines",
    ),
]
MUTANTS = [*GRADIENTS, *KEYS, *EXCHANGE, *WRITING]


def run(tests: str, words: str, library: Path) -> subprocess.CompletedProcess[str]:
    """Some tests of this folder, with that copy of the library."""
    options = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", *(["-k", words] if words else [])]
    environment = {**os.environ, "PYTHONPATH": str(library.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, f"tests/tensor/{tests}"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(LIBRARY, tmp_path_factory.mktemp("broken") / "fanwise"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_of_the_library_as_it_is_now(mutant: Mutant) -> None:
    text = (LIBRARY / "tensor" / mutant.file).read_text()
    assert text.count(mutant.sound) == 1
    ast.parse(text.replace(mutant.sound, mutant.broken))
    assert (Path(__file__).parent / mutant.tests).is_file()


@pytest.mark.soak
def test_the_tests_that_must_notice_pass_with_the_library_as_it_is(copied: Path) -> None:
    for tests in sorted({mutant.tests for mutant in MUTANTS}):
        words = " or ".join({mutant.words for mutant in MUTANTS if mutant.tests == tests} - {""})
        done = run(tests, words, copied)
        assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-3000:]


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_noticed(mutant: Mutant, copied: Path) -> None:
    file = copied / "tensor" / mutant.file
    sound = file.read_text()
    file.write_text(sound.replace(mutant.sound, mutant.broken))
    try:
        done = run(mutant.tests, mutant.words, copied)
    finally:
        file.write_text(sound)
    # 1: tests failed. 5, none of these names; 4, no such file; anything below 0 or above 5: the process was ended.
    assert done.returncode not in (0, 2, 3, 4, 5), done.stdout[-3000:]
