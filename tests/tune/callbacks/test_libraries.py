"""Runs that are logged to TensorBoard, MLflow and W&B are read back with the functions of each library.

The tests run programs, because these libraries leave threads and connections behind. TensorFlow is hidden from
TensorBoard, because loading it takes as long as all other tests.
"""

import importlib
import importlib.util
import json
import socket
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from program_runs import LoadedInterpreter

from fanwise.base.errors import NotInstalled
from fanwise.tune.callbacks import MLflowCallback, TensorBoardCallback, WandbCallback

# Trial 0 completes with two reports. Trial 1 is paused at its first report, resumes, and fails after its second.
SEARCH = """
import json
import sys
sys.modules |= HIDDEN
from fanwise.tune import *
from fanwise.tune.callbacks import *
from fanwise.tune.schedulers import Decision

class PausesOnce(Scheduler):
    def __init__(self, **options):
        super().__init__(**options)
        self.paused, self.due = False, False
    def next(self, ask):
        if self.due:
            self.due = False
            return Resume(1)
        return New() if ask.trial_id < 2 else Wait()
    def on_report(self, observation):
        if observation.trial_id == 1 and not self.paused:
            self.paused = self.due = True
            return Decision.PAUSE
        return Decision.CONTINUE

def objective(x, layers):
    for epoch in (1, 2):
        report(loss=x / epoch, epoch=epoch, note=f"epoch {epoch}")
    if x > 0.8:
        raise ValueError("too large")

if __name__ == "__main__":
    space = {"x": uniform(0, 1), "layers": constant([8, 8])}
    scheduler = PausesOnce(metric="loss", points_to_evaluate=[{"x": 0.5}, {"x": 0.9}])
    stop = StoppingCriterion(max_wallclock_time=60)
    Tuner(objective, space, scheduler, stop, n_workers=2, name="digits", callbacks=[CALLBACK], quiet=True).run()
    READ
    print("FOUND", json.dumps(found))
"""


# The tuner is killed while trials 0 and 1 run. After the resume, trial 0 starts again from the checkpoint of its first
# report, and trial 1 does not start again. Trial 3 is paused at its first report, resumes, and fails after its second.
KILLED = """
import json
import sys
sys.modules |= HIDDEN
from pathlib import Path
from fanwise.tune import *
from fanwise.tune.callbacks import *
from fanwise.tune.core.actions import Reason
from fanwise.tune.schedulers import Decision, Status

def begin(callback, resumed):
    objectives = (Objective("loss", "min"),)
    callback.on_start(SearchStarted("digits", Path("digits"), Space(SPACE), objectives, 7, 2, resumed, 1e9))

def attempt(callback, trial, number, from_iter, *losses, void_after=None):
    callback.on_trial_start(TrialStarted(0.0, trial, number, CONFIG, from_iter, None, void_after))
    for iter, loss in enumerate(losses, from_iter + 1):
        values = {"loss": loss, "note": f"report {iter}"}
        callback.on_report(TrialReported(0.0, trial, number, CONFIG, iter, values, Decision.CONTINUE))

SPACE, CONFIG = {"x": uniform(0, 1), "layers": constant([8, 8])}, {"x": 0.5, "layers": [8, 8]}
killed = CALLBACK
begin(killed, False)
attempt(killed, 0, 0, 0, 0.75, 0.5)
attempt(killed, 1, 0, 0, 1.0)
# `on_trial_start` of trial 2 failed, for example because the disk was full.
killed.on_report(TrialReported(0.0, 2, 0, CONFIG, 1, {"loss": 1.0}, Decision.CONTINUE))
LEAVE
resumed = CALLBACK
begin(resumed, True)
attempt(resumed, 0, 1, 1, 0.25, void_after=1)
resumed.on_trial_end(TrialEnded(0.0, 0, 1, CONFIG, Status.COMPLETED, 2, {"loss": 0.25}, None, False))
attempt(resumed, 3, 0, 0, 0.9)
resumed.on_trial_end(TrialEnded(0.0, 3, 0, CONFIG, Status.PAUSED, 1, {"loss": 0.9}, None, False))
attempt(resumed, 3, 1, 1, 0.45)
reason = Reason("exception", "ValueError: too large")
resumed.on_trial_end(TrialEnded(0.0, 3, 1, CONFIG, Status.FAILED, 2, {"loss": 0.45}, reason, False))
resumed.on_end(None)
if True:
    READ
print("FOUND", json.dumps(found))
"""


# Finds id, name, x, layers, curve and exit code of each run. The curve has (number of the report, attempt, loss).
READ_WANDB = """
import pathlib, struct, time
from wandb.proto import wandb_internal_pb2

def records(data):
    # The format of LevelDB's log: records of checksum, length, type and data; the file begins with 7 bytes.
    at = 7
    while at + 7 <= len(data):
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        if at + 7 + length > len(data):
            return  # the last record is still being written
        assert kind == 1, "the record is not split"
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[at + 7 : at + 7 + length])
        at += 7 + length
        yield record

def records_of_ended_run(file):
    # finish() may return before W&B's own process has written the file.
    deadline = time.monotonic() + 30
    while True:
        found = list(records(file.read_bytes()))
        if any(record.HasField("exit") for record in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)

runs = []
for file in pathlib.Path().glob("**/wandb/offline-run-*/*.wandb"):
    number, name, curve, config = None, None, [], {}
    for record in records_of_ended_run(file):
        if record.HasField("run"):
            number, name = record.run.run_id, f"{record.run.run_group} {record.run.display_name}"
            config |= {item.key: item.value_json for item in record.run.config.update}
        if record.HasField("history"):
            values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            curve.append((values["fanwise/iter"], values["fanwise/attempt"], values["loss"]))
        if record.HasField("exit"):
            code = record.exit.exit_code
    runs.append((number, name, config["x"], config.get("layers"), curve, code))
"""


def found_by(
    loaded: LoadedInterpreter,
    folder: Path,
    callback: str,
    read: str,
    *,
    hidden: Sequence[str] = (),
    program: str = SEARCH,
) -> Any:  # Any: JSON
    script = folder / "search.py"
    search = program.replace("CALLBACK", callback).replace("HIDDEN", repr(dict.fromkeys(hidden)))
    script.write_text(search.replace("READ", "\n    ".join(read.strip().splitlines())))
    environment = {"WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = loaded.run(script, folder=folder, environment=environment, forks=True)
    lines = [line for line in done.out.splitlines() if line.startswith("FOUND ")]
    assert done.status == 0 and len(lines) == 1 and "Traceback" not in done.err, done.said
    return json.loads(lines[0].removeprefix("FOUND "))


def skip_without(library: str) -> None:
    """Skip the test if the library is missing. Unlike `importorskip`, do not import it, because it starts threads."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def test_tensorboard_has_the_curve_and_hyperparameters_of_each_trial(
    tmp_path: Path, torch_loaded: LoadedInterpreter
) -> None:
    skip_without("tensorboard")
    runs = found_by(
        torch_loaded,
        tmp_path,
        "TensorBoardCallback()",
        """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = {}
for folder in (load_experiment("digits").path / "tensorboard").iterdir():
    read = EventAccumulator(str(folder))
    read.Reload()
    start = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    curve = [(event.step, round(event.value, 6)) for event in read.Scalars("loss")]
    notes = [event.tensor_proto.string_val[0].decode() for event in read.Tensors("note/text_summary")]
    found[folder.name] = [curve, round(read.Scalars("last/loss")[0].value, 6), b"[8, 8]" in start, notes]
""",
        hidden=["tensorflow"],
    )
    assert runs == {
        "trial-0": [[[1, 0.5], [2, 0.25]], 0.25, True, ["epoch 1", "epoch 2"]],
        "trial-1": [[[1, 0.9], [2, 0.45]], 0.45, True, ["epoch 1", "epoch 2"]],
    }


def test_mlflow_continues_the_runs_of_a_killed_search(tmp_path: Path, torch_loaded: LoadedInterpreter) -> None:
    skip_without("mlflow")
    runs = found_by(
        torch_loaded,
        tmp_path,
        'MLflowCallback("mlruns")',
        """
import mlflow
client = mlflow.MlflowClient("mlruns")
experiment = client.get_experiment_by_name("digits")
found = []
for run in client.search_runs([experiment.experiment_id]):
    curve = [(event.step, event.value) for event in client.get_metric_history(run.info.run_id, "loss")]
    names = ("note", "fanwise.status", "fanwise.reason", "fanwise.attempt.1")
    tags = [run.data.tags.get(name) for name in names]
    found.append([run.info.run_name, run.info.status, sorted(run.data.params.items()), curve, tags])
found.sort()
""",
        program=KILLED.replace("LEAVE", ""),
    )
    params = [["layers", "[8, 8]"], ["x", "0.5"]]
    discarded = "reports of earlier attempts after number 1 are discarded"
    assert runs == [
        ["trial 0", "FINISHED", params, [[1, 0.75], [2, 0.5], [2, 0.25]], ["report 2", "Completed", None, discarded]],
        ["trial 1", "KILLED", params, [[1, 1.0]], ["report 1", None, None, None]],
        ["trial 3", "FAILED", params, [[1, 0.9], [2, 0.45]], ["report 2", "Failed", "ValueError: too large", None]],
    ]


def test_tensorboard_hides_reports_that_a_resume_discarded(tmp_path: Path, torch_loaded: LoadedInterpreter) -> None:
    skip_without("tensorboard")
    runs = found_by(
        torch_loaded,
        tmp_path,
        'TensorBoardCallback("events")',
        """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator("events/trial-0")
read.Reload()
found = [(event.step, event.value) for event in read.Scalars("loss")]
""",
        hidden=["tensorflow"],
        program=KILLED.replace("LEAVE", "killed.on_end(None)"),
    )
    assert runs == [[1, 0.75], [2, 0.25]]


def test_unreachable_mlflow_server_is_logged_in_one_line_and_does_not_delay_the_search(
    tmp_path: Path, torch_loaded: LoadedInterpreter
) -> None:
    skip_without("mlflow")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    script = tmp_path / "search.py"
    script.write_text(
        SEARCH.replace("CALLBACK", f"MLflowCallback({address!r})").replace("HIDDEN", "{}").replace("READ", "found = 1")
    )
    done = torch_loaded.run(script, folder=tmp_path, forks=True)
    assert done.status == 0 and done.err.splitlines() == [
        f"the callback MLflowCallback.on_start raised ConnectionError: MLflow's server {address} cannot be reached "
        "(ConnectionError); this search is not logged to it. It receives no more events; the search continues."
    ], done.said


def test_wandb_continues_the_runs_of_a_killed_search(tmp_path: Path, torch_loaded: LoadedInterpreter) -> None:
    skip_without("wandb")
    runs = found_by(
        torch_loaded,
        tmp_path,
        'WandbCallback("digits", mode="offline", dir=folder)',
        READ_WANDB + "found = sorted(runs, key=lambda run: (run[1], run[4]))\n",
        # W&B would use one folder for both parts of a run that begin in the same second.
        program="folder = '.'\n"
        + KILLED.replace("LEAVE", "killed.on_end(None)\nfolder = 'later'\nPath(folder).mkdir()"),
    )
    ids = [number for number, *_ in runs]
    assert len(set(ids)) == 3 and ids[0] == ids[1]
    assert [run[1:] for run in runs] == [
        ["digits digits/0", "0.5", "[8,8]", [[1, 0, 0.75], [2, 0, 0.5]], 0],
        ["digits digits/0", "0.5", "[8,8]", [[2, 1, 0.25]], 0],
        ["digits digits/1", "0.5", "[8,8]", [[1, 0, 1.0]], 0],
        ["digits digits/3", "0.5", "[8,8]", [[1, 0, 0.9], [2, 1, 0.45]], 1],
    ]


@pytest.mark.parametrize(
    ("library", "callback", "extra"),
    [
        ("tensorboard", TensorBoardCallback, "tensorboard"),
        ("mlflow", MLflowCallback, "mlflow"),
        ("wandb", WandbCallback, "wandb"),
    ],
)
def test_error_names_the_extra_of_a_missing_library(
    library: str, callback: type, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(NotInstalled, match=rf"pip install 'fanwise\[{extra}\]'"):
        callback()


def test_log_folder_of_wandb_is_not_mistaken_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    with pytest.raises(NotInstalled, match=r"pip install 'fanwise\[wandb\]'"):
        WandbCallback()
