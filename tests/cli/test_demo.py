"""The demo from end to end, short: what it prints, what it draws, and that it loads no torch in its own process."""

import re
from pathlib import Path

import matplotlib.image

from fanwise.testing.programs import run_program

SHOW_LOADED = "import atexit, sys; atexit.register(lambda: print('loaded', *sys.modules)); "
START = "sys.argv[0] = 'fanwise'; from fanwise.cli import main; main()"


def test_the_demo_searches_says_what_it_found_and_draws_it(tmp_path: Path) -> None:
    arguments = ["demo", "--seconds", "8", "--workers", "2", "--out", "pictures"]
    done = run_program(["-c", SHOW_LOADED + START, *arguments], folder=tmp_path)
    assert (done.status, done.err) == (0, "")
    out = done.out
    assert "trial 0 scheduled: learning_rate=0.1, batch_size=128, max_epochs=" in out
    assert "the search ended: max_wallclock_time=8 s is over" in out
    assert re.search(
        r"^best configuration   learning_rate=[\d.]+, batch_size=\d+, max_epochs=\d+, data=digits$", out, re.M
    )
    assert re.search(r"^validation error     [01]\.\d{4} \(trial \d+, epoch \d+\)$", out, re.M)
    shares = r"[\d.]+ % \(start-up [\d.]+ %, idle [\d.]+ %\)"
    assert re.search(rf"^worker utilisation   {shares} of 2 workers, from the first", out, re.M)
    assert re.search(r"^start-up             \d+\.\d s until the first worker was ready$", out, re.M)
    pictures = re.findall(r"^picture              (\S+)$", out, re.M)
    assert pictures == ["pictures/incumbent.png", "pictures/learning-curves.png", "pictures/workers.png"]
    for picture in pictures:
        image = matplotlib.image.imread(tmp_path / picture)
        assert image.shape[1] > 800 and image[..., :3].std() > 0.02
    results = re.findall(r"^results              (\S+)$", out, re.M)
    assert [Path(folder, "record.sqlite").is_file() for folder in results] == [True]
    loaded = set(out[out.index("\nloaded ") :].split())
    assert "fanwise.cli.demo" in loaded
    assert loaded & {"torch", "fanwise.cli.demo_objective"} == set(), "workers load these, not the command"
