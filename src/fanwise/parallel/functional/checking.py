"""What is wrong with what a step of a functional model is given, or with what its functions return."""

from collections.abc import Mapping

import torch

from ..process_settings.engine_threads import asked_threads
from .engines import Engine, Tree, Update

_RIGHT = (
    "  right:  def update(grads, state, params):                       # optax\n"
    "              changes, state = optimizer.update(grads, state, params)\n"
    "              return optax.apply_updates(params, changes), state\n"
    "  right:  def update(grads, state, params):                       # Keras on JAX\n"
    "              return optimizer.stateless_apply(state, grads, params)"
)


def check_update(update: Update) -> None:
    """Raises TypeError for what does not make (new params, new state) of (gradients, state, params)."""
    module, name = getattr(update, "__module__", "") or "", getattr(update, "__name__", "")
    if hasattr(update, "update") or not callable(update):
        what = f"update is a {type(update).__name__}, not a function"
    elif name == "stateless_apply":
        what = "update is stateless_apply of a Keras optimizer, whose arguments are (state, gradients, params)"
    elif module.partition(".")[0] == "optax":
        what = "update is that of an optax transformation, which returns changes of the parameters, not parameters"
    else:
        return
    raise TypeError(
        f"{what}. It is called as update(grads, state, params) and returns (new params, new state).\n{_RIGHT}"
    )


def check_result(result: object) -> None:
    """Raises TypeError for what an update has returned, if it is no pair."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"update must return (new params, new state), got {type(result).__name__}.\n{_RIGHT}")


def check_leaves(engine: Engine, tree: Tree, called: str, *, floating: bool = False) -> None:
    """Raises TypeError for leaves that are no arrays with values, or no floating-point ones where these are wanted."""
    for path, leaf in zip(engine.paths(tree), engine.flatten(tree)[0], strict=True):
        if not isinstance(leaf, int | float) and (why := engine.why_not(leaf)):
            raise TypeError(f"{called}{path} is {why}")
        if floating and not engine.is_floating(leaf):
            raise TypeError(
                f"{called}{path} is {getattr(leaf, 'dtype', type(leaf).__name__)}, of which there is no gradient. "
                f"What is not trained is for buffers=, or for state=."
            )


def check_place(engine: Engine, params: Tree, device: torch.device) -> None:
    """Raises ValueError for parameters on another kind of device than that of the run."""
    for path, leaf in zip(engine.paths(params), engine.flatten(params)[0], strict=True):
        if (place := engine.place_of(leaf)) != device.type:
            raise ValueError(
                f"params{path} is on {place}, and this run's device is {device}.\n"
                f"Make the parameters there, or give the run such a device: devices='cpu', devices='cuda:0'."
            )


def check_threads(engine: Engine, device: torch.device) -> None:
    """Raises ValueError where the engine has begun in this process with other threads than a device of the run has."""
    asked = asked_threads()
    if asked is None or device.type != "cpu" or (threads := engine.threads()) == asked:
        return
    raise ValueError(
        f"{engine.title} has begun in this process with {threads} threads, before the run, and a device of this run "
        f"has {asked}. An engine keeps the number that it has begun with, and another number gives other bits.\n"
        f"  right:  arrays of {engine.title} made in the training function; data from outside of NumPy\n"
        f"  right:  fanwise.run(..., devices=['cpu'] * 2)      # in processes of their own\n"
        f"  right:  {engine.threads_variable}={asked} in the environment, when the program is started\n"
        f"  right:  fanwise.run(..., threads={threads})              # other bits than those of threads={asked}"
    )


def check_no_options(given: Mapping[str, object]) -> None:
    """Raises TypeError for options that only a torch model has. `given`: those that are not as they are by default."""
    if given:
        raise TypeError(
            f"{', '.join(f'{name}=' for name in given)}: for torch models. Of a tree of parameters clipping, windows "
            f"of several batches, schedules and precision are part of update and loss_fn, as optax.chain and "
            f"optax.MultiSteps make them."
        )


def other_function() -> ValueError:
    """For a loss function that is not the same when it is traced again."""
    return ValueError(
        "loss_fn was traced twice, and was not the same function: it depends on something besides its arguments, such "
        "as a counter in a closure, the time, or a generator of NumPy. It is traced once for each shape of a shard, "
        "by each process at another time, so it would be another function in each.\n"
        "  wrong:  calls[0] += 1; return losses / calls[0]\n"
        "  wrong:  noise = np.random.default_rng().normal(size=x.shape)\n"
        "  right:  def loss_fn(params, x, y, key): ...               # key: random numbers of this shard\n"
        "  right:  give it with the batch, in params, or in buffers="
    )


def no_batch_leaf(title: str, dtype: object) -> TypeError:
    """For a part of a batch that holds no numbers."""
    return TypeError(
        f"a part of the batch is of type {dtype}, of which {title} makes no arrays. Leave it out of the batch, or make "
        f"numbers of it with collate_fn="
    )
