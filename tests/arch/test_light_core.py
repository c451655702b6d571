"""What `pip install fanwise` brings is enough for a search, and what needs more says which extra brings it.

A program runs where only the required libraries, and what they require, can be imported: what pip would have installed,
by pyproject.toml and the metadata of the packages that are here. So do the processes that it starts.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from program_runs import Finished, run_program

# Run by every interpreter when it starts, from PYTHONPATH.
HIDE = """
import importlib.machinery, sys

class OnlyRequired(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in HIDDEN:
            return super().find_spec(name, path, target)

HIDDEN = set({hidden!r})
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = OnlyRequired
"""

# The objective is one that needs no torch, as of LightGBM or JAX: NumPy's scalars, a file as checkpoint.
SEARCH = """
import importlib.util, json, sys
import numpy as np
import fanwise
from fanwise.plot import save_figure
from fanwise.tune import choice, loguniform, report

def train(learning_rate, kind):
    drawn = np.random.random()  # seeded, as of every trial
    for step in range(1, 3):
        loss = np.float32((learning_rate - 0.1) ** 2 + 1 / step)
        report(step=np.int64(step), loss=loss, drawn=drawn, torch=importlib.util.find_spec("torch") is not None,
               checkpoint=lambda folder: (folder / "weights").write_text("0.5"))

space = {"learning_rate": loguniform(1e-3, 1), "kind": choice(["dart", "gbdt"])}
experiment = fanwise.search(train, space, metric="loss", n_trials=10, n_workers=2, name="light")
save_figure(experiment.plot(), "incumbent.png")
results = experiment.results
print(json.dumps({
    "trials": len(experiment.trials), "rows": len(results), "torch": bool(results["torch"].any()),
    "drawn": int(results["drawn"].nunique()), "chosen": experiment.metadata["chosen"],
    "loaded": sorted({name.partition(".")[0] for name in sys.modules}),
}))
"""

# By extra, what ends with its name: statements, and commands.
NEEDS = {
    "rpc": ["import fanwise.rpc", "fanwise.rpc.init_rpc", "import fanwise.links.security.certificates"],
    "torch": ["fanwise.run", "import fanwise.parallel", "fanwise.parallel.context", "fanwise.tensor.zeros(3)"],
    "demo": ["fanwise.zoo.LeNet", "fanwise.zoo.digits()", "fanwise.zoo.fashion_mnist()", "fanwise demo"],
    "forest": [
        "fanwise.tune.ForestSearcher()",
        "fanwise.tune.load_experiment('light').importances()",
        "fanwise tune importance light",
    ],
    "optuna,torch": ["fanwise.tune.open_search({'x': uniform(0, 1)}, 'loss', searcher='bayesopt')"],
    "optuna": ["fanwise.tune.OptunaSearcher('TPESampler').begin(Space({'x': uniform(0, 1)}), 0)"],
    "ray": ["Pool(ray='auto').submit(abs, 1)"],
    "board": ["Tuner(lambda x: x, {'x': uniform(0, 1)}, metric='loss', stop=stop, board=True)", "fanwise board"],
    "tensorboard": ["fanwise.tune.callbacks.TensorBoardCallback()"],
    "mlflow": ["fanwise.tune.callbacks.MLflowCallback()"],
    "wandb": ["fanwise.tune.callbacks.WandbCallback()"],
    "parquet": ["fanwise.tune.load_experiment('light').export('light.parquet')"],
    "jax": ["with fanwise.tensor.use('jax'): pass"],
    "tensorflow": ["with fanwise.tensor.use('tensorflow'): pass"],
}
ERRORS = """
import contextlib, io, json, sys
import fanwise
import fanwise.cli
from fanwise import Pool
from fanwise.errors import NotInstalled
from fanwise.tune import StoppingCriterion, Tuner, uniform
from fanwise.tune.space import Space

stop = StoppingCriterion(max_num_trials_started=1)
said = {}
for line in json.loads(sys.argv[1]):
    printed, complained = io.StringIO(), io.StringIO()
    try:
        if not line.startswith("fanwise "):
            exec(line)
            continue
        sys.argv = line.split()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
            fanwise.cli.main()
    except SystemExit as end:
        assert (end.code, printed.getvalue()) == (1, "")
        said[line] = complained.getvalue().strip()
    except NotInstalled as error:
        said[line] = str(error)
    except BaseException as error:
        said[line] = repr(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return found


def brought_by(requirements: list[str]) -> Iterator[str]:
    """The names of these packages and of all that they require, without extras."""
    ahead, seen = [Requirement(each) for each in requirements], set()
    while ahead:
        found = ahead.pop()
        name = canonicalize_name(found.name)
        if name in seen or (found.marker is not None and not found.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        yield name
        ahead += [Requirement(each) for each in requires(name) or ()]


@pytest.fixture(scope="module")
def folder(project: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `hiding` hides what pip would not have installed."""
    kept = {"fanwise", *brought_by(project["dependencies"])}
    by_import = packages_distributions()
    hidden = {name for name, packages in by_import.items() if not kept & set(map(canonicalize_name, packages))}
    assert {"torch", "sklearn", "cryptography", "starlette"} <= hidden and not {"numpy", "scipy", "pandas"} & hidden
    folder = tmp_path_factory.mktemp("light")
    (folder / "hiding").mkdir()
    (folder / "hiding" / "sitecustomize.py").write_text(HIDE.replace("{hidden!r}", repr(sorted(hidden))))
    return folder


def run(folder: Path, *arguments: str) -> Finished:
    path = os.pathsep.join([str(folder / "hiding"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return run_program(arguments, folder=folder, environment={"PYTHONPATH": path})


@pytest.fixture(scope="module")
def searched(folder: Path) -> Finished:
    (folder / "search.py").write_text(SEARCH)
    return run(folder, "search.py")


def test_a_search_runs_with_what_pip_installs_and_says_which_searcher_it_has(searched: Finished) -> None:
    assert (searched.status, searched.err) == (0, "")
    found = json.loads(searched.out.splitlines()[-1])
    assert (found["trials"], found["rows"], found["torch"], found["drawn"]) == (10, 20, False, 10)
    assert not {"torch", "sklearn", "cryptography", "jax"} & set(found["loaded"])
    reason = "there is one objective"
    assert found["chosen"] == {"searcher": "gp", "because": reason}
    assert f"chosen because {reason} (searcher='gp'; fanwise explain searchers)" in searched.out


def test_every_layer_names_its_extra_and_where_more_is_said(searched: Finished, folder: Path) -> None:
    assert searched.status == 0
    (folder / "errors.py").write_text(ERRORS)
    done = run(folder, "errors.py", json.dumps([line for lines in NEEDS.values() for line in lines]))
    assert (done.status, done.err) == (0, "")
    said = json.loads(done.out)
    for extra, lines in NEEDS.items():
        for line in lines:
            assert re.search(
                rf"pip install 'fanwise\[{extra}\]'.*See: fanwise explain not-installed$", said.get(line, ""), re.DOTALL
            ), f"{line}: {said.get(line)}"


def test_every_extra_that_is_named_exists(project: dict[str, Any], repository: Path) -> None:
    places = [repository / "README.md", *(repository / "docs").rglob("*.md"), *(repository / "src").rglob("*.py")]
    text = "\n".join(path.read_text() for path in places)
    named = {extra for each in re.findall(r"fanwise\[([a-z,]+)\]", text) for extra in each.split(",")}
    named |= set(re.findall(r'check_installed\(.*extra="(\w+)"', text))
    assert named - set(project["optional-dependencies"]) == set() and {"forest", "rpc"} <= named


def test_all_brings_every_extra_but_other_engines(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]

    def within(name: str) -> set[str]:
        inner = {each for line in extras[name] for each in re.findall(r"fanwise\[(.*)\]", line)}
        return {name}.union(*(within(each) for line in inner for each in line.split(",")))

    assert set(extras) - within("all") == {"jax", "tensorflow", "examples", "dev", "docs"}
