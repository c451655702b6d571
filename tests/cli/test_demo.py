"""The demo from end to end: the printed results and the figures. test_commands checks what it imports."""

import json
import re
from pathlib import Path

import matplotlib.image
from program_runs import LoadedInterpreter

# The search ends after one short trial, because nothing is certain to happen within a time limit on a busy machine.
DEMO = """
import functools, sys
from fanwise.cli import demo, main
demo.MAX_EPOCHS["digits"] = 2
demo.StoppingCriterion = functools.partial(demo.StoppingCriterion, max_num_trials_completed=1)
sys.argv[:] = ["fanwise", "demo", "--seconds", "600", "--workers", "1", "--out", "pictures"]
main()
"""


def test_the_demo_searches_prints_the_best_and_draws_figures(torch_loaded: LoadedInterpreter, tmp_path: Path) -> None:
    script = tmp_path / "demo.py"
    script.write_text(DEMO)
    done = torch_loaded.run(script, folder=tmp_path, forks=True, limit_s=300.0)  # so its workers have torch at once
    assert (done.status, done.err) == (0, "")
    out = done.out
    assert "trial 0 scheduled: learning_rate=0.1, batch_size=128, max_epochs=" in out
    assert re.search(
        r"^best configuration  learning_rate=[\d.]+, batch_size=\d+, max_epochs=\d+, data=digits$", out, re.M
    )
    assert re.search(r"^validation error    [01]\.\d{4} \(trial \d+, epoch \d+\)$", out, re.M)
    shares = r"[\d.]+ % \(start-up [\d.]+ %, idle [\d.]+ %\)"
    assert re.search(rf"^worker utilization  {shares} of 1 worker, since the first", out, re.M)
    assert re.search(r"^start-up            \d+\.\d s until the first worker was ready$", out, re.M)
    pictures = re.findall(r"^figure              (\S+)$", out, re.M)
    names = ["incumbent", "learning-curves", "workers"]
    assert pictures == [f"pictures/{name}.png" for name in names]
    for picture in pictures:
        image = matplotlib.image.imread(tmp_path / picture)
        assert image.shape[1] > 800 and image[..., :3].std() > 0.02
    name = re.findall(r"^experiment (\S+): ", out, re.M)[0]
    assert f"\nnext: show the results again        fanwise tune show {name}\n" in out
    assert "fanwise tune run train.py:train --space space.yaml" in out.splitlines()[-2]
    (folder,) = re.findall(r"^results             (\S+)$", out, re.M)
    assert json.loads(Path(folder, "meta.json").read_text())["stop"]["max_wallclock_time"] == 600.0
