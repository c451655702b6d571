"""The board over a real socket: views, commands, and attacks."""

import gzip
import http.client
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from program_statuses import run_status
from recorded_search import RecordedSearch

from fanwise.board.experiments import Home
from fanwise.board.serving import OpenBoard, open_board
from fanwise.board.with_uvicorn import Server
from fanwise.links.status_files import StatusFile
from fanwise.testing import within
from fanwise.tune.record.log import Record

LR = {"domain": "loguniform", "lower": 0.01, "upper": 1.0}
KIND = {"domain": "choice", "categories": ["a", "b"]}
META: dict[str, Any] = {
    "objective": "train",
    "metric": "error",
    "mode": "min",
    "objectives": [["error", "min"]],
    "n_workers": 2,
    "seed": 1,
    "stop": {"max_wallclock_time": 60.0, "max_num_trials_started": 20},
    "space": {"lr": LR, "epochs": {"constant": 2}},
}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the board."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass(frozen=True, slots=True)
class Served:
    """A board that answers."""

    board: OpenBoard

    @property
    def port(self) -> int:
        port = self.board.listener.getsockname()[1]
        assert isinstance(port, int)
        return port

    @property
    def cookie(self) -> str:
        return f"fanwise-board-{self.port}={self.board.guard.session}"

    def ask(self, path: str, *, method: str = "GET", body: str | None = None, **headers: str | None) -> Answer:
        """Headers are given with underscores: sec_fetch_site="cross-site"; None leaves one out."""
        sent = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if "cookie" not in headers:
                sent["Cookie"] = self.cookie
            if "host" not in headers:
                sent["Host"] = f"127.0.0.1:{self.port}"
            if body is not None:
                sent["Content-Length"] = str(len(body.encode()))
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders(None if body is None else body.encode())
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def command(self, name: str, word: str, *args: object, **headers: str | None) -> Answer:
        body = json.dumps({"word": word, "args": args})
        sent: dict[str, str | None] = {"content_type": "application/json", **headers}
        return self.ask(f"/api/experiments/{name}/commands", method="POST", body=body, **sent)

    @contextmanager
    def events(self, path: str) -> Iterator[Iterator[Any]]:
        """Yield server-sent events as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path, headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield (json.loads(line[6:]) for line in iter(answer.readline, b"") if line.startswith(b"data: "))
        finally:
            connection.close()


@contextmanager
def serving(board: OpenBoard, request_s: float = 30.0) -> Iterator[Served]:
    """Answers in a thread, as long as the block lasts."""
    server = Server(Home(board.home), board.guard, request_timeout_s=request_s)
    thread = threading.Thread(target=server.serve, args=(board.listener,), name="board")
    thread.start()
    try:
        yield Served(board)
    finally:
        server.end()
        thread.join()
        board.listener.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder for experiments."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def board(home: Path) -> Iterator[Served]:
    """A board that answers requests with its cookie."""
    with serving(open_board(home, port=0)) as served:
        yield served


class Recorded(Protocol):
    """Creates the record of a search that runs until the end of the test. Each event is committed at once."""

    def __call__(self, name: str, **meta: Any) -> RecordedSearch: ...  # Any: JSON


@pytest.fixture
def recorded(home: Path) -> Iterator[Recorded]:
    """See `Recorded`."""
    with ExitStack() as stack:
        yield lambda name, **meta: stack.enter_context(searching(home / name, name=name, **meta))


@contextmanager
def searching(folder: Path, *, commit: bool = True, **meta: Any) -> Iterator[RecordedSearch]:  # Any: JSON
    with Record.create(folder, {**META, **meta}) as record:

        def add(t_s: float, kind: str, trial_id: int | None, body: dict[str, Any]) -> None:  # Any: JSON
            record.append(t_s, kind, trial_id, body)
            if commit:
                record.commit()

        yield RecordedSearch(add)
        record.commit()


@contextmanager
def ended(home: Path, name: str, *, commit: bool = True, **meta: Any) -> Iterator[RecordedSearch]:  # Any: JSON
    """A search that ends after the block."""
    with searching(home / name, commit=commit, name=name, **meta) as search:
        yield search
        search.finish(1e4, "done")


def write_trials(search: RecordedSearch, number: int, *, num_reports: int = 3) -> None:
    """Trials one after another, each better than the one before it."""
    for trial_id in range(number):
        at_s = float(trial_id)
        search.start(at_s, trial_id, {"lr": 0.01 + 0.9 * trial_id / max(1, number), "epochs": 2}, slot=trial_id % 2)
        search.ready(at_s, trial_id)
        for iteration in range(1, num_reports + 1):
            value = 1.0 / (1 + trial_id) + 1.0 / iteration
            search.report(at_s + 0.1 * iteration, trial_id, iteration, {"error": value, "epoch": iteration})
        search.end(at_s + 0.9, trial_id, "Completed", 0.9)
        search.free(at_s + 0.9, trial_id)


def first(board: Served, path: str) -> Any:
    """The first event."""
    with board.events(path) as events:
        return next(events)


# -- views -------------------------------------------------------------------------------------------------------------


def test_running_experiments_are_listed_first_and_unreadable_ones_too(
    board: Served, recorded: Recorded, home: Path
) -> None:
    with ended(home, "old") as search:
        write_trials(search, 2)
    write_trials(recorded("live"), 3)
    (home / "foreign").mkdir()
    (home / "foreign" / "events.jsonl").write_bytes(b"no record")
    shutil.copytree(home / "old", home / "half")
    whole = (home / "half" / "events.jsonl").read_bytes()
    (home / "half" / "events.jsonl").write_bytes(whole[whole.index(b"\n") + 1 :])
    (home / "half" / "summary.json").unlink(missing_ok=True)
    (home / "other").mkdir()
    (home / "other" / "events.jsonl").touch()
    (home / "other" / "meta.json").write_text('{"format": [3, 0]}')
    (home / "other" / "summary.json").write_text('"nonsense"')
    (home / "empty").mkdir()
    os.mkfifo(home / "empty" / "events.jsonl")
    answer = board.ask("/api/experiments").json
    lines = {line["id"]: line for line in answer["experiments"]}
    assert answer["experiments"][0]["id"] == "live" and answer["home"] == str(home)
    assert lines["live"]["trials"]["total"] == 3 and lines["old"]["state"] == "finished"
    unreadable = {name for name, line in lines.items() if line["state"] == "unreadable"}
    assert unreadable == {"foreign", "half", "other", "empty"}
    assert all(lines[name]["error"] for name in unreadable)


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b"\x1b[2J"])
def test_a_folder_with_an_undecodable_name_is_listed_as_unreadable(board: Served, home: Path, name: bytes) -> None:
    folder = home / os.fsdecode(name)
    with ended(home, "old") as search:
        write_trials(search, 1)
    (home / "old").rename(folder)
    (line,) = board.ask("/api/experiments").json["experiments"]
    assert line["state"] == "unreadable" and "unprintable" in line["error"]


def test_a_missing_home_has_no_experiments(tmp_path: Path) -> None:
    with serving(open_board(tmp_path / "later", port=0)) as board:
        assert board.ask("/api/experiments").json["experiments"] == []


def test_training_runs_are_listed(board: Served) -> None:
    file = StatusFile("run")
    within(30.0, file.is_wanted, "the board has asked")
    file.write(run_status(name="<b>", loss=0.5).body)
    (run,) = board.ask("/api/experiments").json["runs"]
    assert (run["name"], run["loss"], run["world_size"]) == ("<b>", 0.5, 1)
    file.close()
    assert board.ask("/api/experiments").json["runs"] == []


def test_a_running_experiment_has_its_best_report_and_budget(board: Served, recorded: Recorded) -> None:
    search = recorded("live")
    write_trials(search, 5)
    event = first(board, "/api/experiments/live/live")
    assert event["state"] == "running" and event["best"]["trial"] == 4
    assert event["best"]["python"] == "{'lr': 0.73, 'epochs': 2}"
    assert {one["name"]: one["used"] for one in event["budget"]}["trials started"] == 5
    assert event["trials"]["Completed"] == 5 and event["num_reports"] == 15
    assert board.ask("/api/experiments/live").json["trials"]["total"] == 5


def test_events_follow_the_record(board: Served, recorded: Recorded) -> None:
    search = recorded("live")
    write_trials(search, 1)
    with board.events("/api/experiments/live/live") as events:
        assert next(events)["num_reports"] == 3
        search.start(5.0, 1, {"lr": 0.5, "epochs": 2})
        search.ready(5.0, 1)
        search.report(5.5, 1, 1, {"error": 0.001})
        assert next(one["best"]["value"] for one in events if one["num_reports"] == 4) == 0.001
    curves = board.ask("/api/experiments/live/curves").json
    assert [one["trial"] for one in curves["curves"]] == [0, 1] and curves["incumbents"][-1][1:] == [0.001, 1]


def test_only_improvements_are_incumbents(board: Served, home: Path) -> None:
    with ended(home, "old", mode="max", constraints=["size <= 2"]) as search:
        search.start(0.0, 0, {"lr": 0.1, "epochs": 2})
        search.ready(0.0, 0)
        values = [(0.5, 1), (0.5, 1), (0.9, 3), (float("nan"), 1), (0.6, 2), ("text", 1), (0.6, 1), (0.1, 1)]
        for iteration, (error, size) in enumerate(values, 1):
            search.report(iteration, 0, iteration, {"error": error, "size": size})
    curves = board.ask("/api/experiments/old/curves").json
    assert curves["incumbents"] == [[1.0, 0.5, 0], [5.0, 0.6, 0]]
    assert curves["curves"][0]["v"] == [0.5, 0.5, 0.9, 0.6, 0.6, 0.1]


def test_deleting_an_experiment_ends_its_events(board: Served, home: Path) -> None:
    with ended(home, "old") as search:
        write_trials(search, 1)
    with board.events("/api/experiments/old/live") as events:
        next(events)
        shutil.rmtree(home / "old")
        assert "no experiment 'old'" in next(events)["error"]
    with ended(home, "old") as search:
        write_trials(search, 2)
    assert first(board, "/api/experiments/old/live")["trials"]["total"] == 2


def test_every_view_of_a_search(board: Served, home: Path) -> None:
    with ended(home, "old", space={"lr": LR, "kind": KIND, "epochs": {"constant": 2}}) as search:
        for trial_id in range(12):
            search.start(trial_id, trial_id, {"lr": 0.02 + trial_id / 20, "kind": "a", "epochs": 2}, slot=trial_id % 2)
            search.ready(trial_id + 0.1, trial_id)
            decision = "STOP" if trial_id % 3 else "CONTINUE"
            search.report(trial_id + 0.5, trial_id, 1, {"error": 1.0 / (trial_id + 1)}, decision=decision)
            search.end(trial_id + 0.6, trial_id, "Stopped" if trial_id % 3 else "Completed", 0.5)
            search.free(trial_id + 0.6, trial_id)
    workers = board.ask("/api/experiments/old/workers").json
    assert {one["slot"] for one in workers["intervals"]} == {0, 1} and 0 < workers["shares"]["busy"] < 1
    [rung] = board.ask("/api/experiments/old/rungs").json["rungs"]
    assert (rung["arrived"], rung["continued"]) == (12, 0)
    parallel = board.ask("/api/experiments/old/hyperparameters").json
    assert [axis["name"] for axis in parallel["axes"]] == ["lr", "kind"] and len(parallel["lines"]) == 12
    importance = board.ask("/api/experiments/old/importance").json
    assert {bar["name"] for bar in importance["bars"]} == {"lr", "kind"}
    assert board.ask("/api/experiments/old/front").status == 400
    assert "2 to 4 objectives" in board.ask("/api/experiments/old/front").json["error"]
    assert board.ask("/api/experiments/old/other").status == 404


def test_a_new_search_has_every_view(board: Served, recorded: Recorded) -> None:
    search = recorded("live")
    every_view_of_nothing(board)
    search.start(0.0, 0, {"lr": 0.1, "epochs": 2})
    trial = within(30.0, lambda: of_a_trial(board), "the trial is seen")
    assert trial["values"] == {} and trial["status"] == "InProgress"
    every_view_of_nothing(board)


def every_view_of_nothing(board: Served) -> None:
    assert first(board, "/api/experiments/live/live")["best"] is None
    for view in ("curves", "workers", "rungs", "hyperparameters", "trials"):
        assert board.ask(f"/api/experiments/live/{view}").status == 200, view


def of_a_trial(board: Served) -> Any:
    answer = board.ask("/api/experiments/live/trials/0")
    return answer.json if answer.status == 200 else None


def test_several_objectives_have_a_front(board: Served, home: Path) -> None:
    with ended(home, "two", objectives=[["error", "min"], ["size", "max"]]) as search:
        search.start(0.0, 0, {"lr": 0.1, "epochs": 2})
        search.ready(0.1, 0)
        for iteration, (error, size) in enumerate([(0.5, 1.0), (0.4, 2.0), (0.6, 3.0), (0.7, 1.0)], 1):
            search.report(iteration, 0, iteration, {"error": error, "size": size})
    front = board.ask("/api/experiments/two/front").json
    assert [one[1] for one in front["front"]] == [[0.4, 2.0], [0.6, 3.0]] and len(front["dominated"]) == 2


def test_importances_of_too_few_trials_are_refused(board: Served, recorded: Recorded) -> None:
    write_trials(recorded("live"), 2)
    answer = board.ask("/api/experiments/live/importance")
    assert answer.status == 400 and "at least 10 trials" in answer.json["error"]


def test_the_table_is_sorted_filtered_and_cut(board: Served, recorded: Recorded) -> None:
    search = recorded("live")
    write_trials(search, 250, num_reports=1)
    search.start(251.0, 250, {"lr": 0.5, "epochs": 2})
    table = "/api/experiments/live/trials"
    page = board.ask(table).json
    assert (page["total"], page["found"], len(page["rows"])) == (251, 251, 100)
    assert [row["trial"] for row in board.ask(f"{table}?offset=200").json["rows"]] == list(range(200, 251))
    best = board.ask(f"{table}?sort=best").json["rows"]
    assert best[0]["trial"] == 249
    worst = board.ask(f"{table}?sort=best&descending=true&offset=200").json["rows"]
    assert worst[-1]["trial"] == 250, "rows without a value are last in both directions"
    assert [row["trial"] for row in board.ask(f"{table}?status=InProgress").json["rows"]] == [250]
    assert board.ask(f"{table}?sort=config.lr&descending=true").json["rows"][0]["trial"] == 249
    assert board.ask(f"{table}?text=lr%3D0.5").json["rows"][-1]["trial"] == 250
    assert board.ask(f"{table}?sort=nothing&offset=-3").status == 200


def test_a_trial_has_configuration_curve_failure_and_output(board: Served, home: Path) -> None:
    reason = {
        "kind": "exception",
        "text": "ValueError: <b>no</b>",
        "traceback": "Traceback:\x1b[31m",
        "last_output": "",
    }
    with ended(home, "old") as search:
        search.start(0.0, 0, {"lr": 0.1, "epochs": 2})
        search.ready(0.1, 0)
        search.report(0.2, 0, 1, {"error": 0.5, "note": "text"})
        search.report(0.3, 0, 2, {"error": float("nan")})
        search.end(0.4, 0, "Failed", 0.3, reason=reason)
    (home / "old" / "output").mkdir()
    (home / "old" / "output" / "0.out").write_text("x\n" * 100_000 + "the <end>\x1b[2J\n")
    trial = board.ask("/api/experiments/old/trials/0").json
    assert trial["config"] == {"lr": 0.1, "epochs": 2} and trial["python"] == "{'lr': 0.1, 'epochs': 2}"
    assert trial["values"]["error"] == {"t": [0.2], "n": [1], "v": [0.5], "last": "nan"}
    assert trial["values"]["note"]["last"] == "text" and trial["values"]["note"]["v"] == []
    assert trial["failure"] == {
        "kind": "exception",
        "text": "ValueError: <b>no</b>",
        "traceback": "Traceback:\\x1b[31m",
    }
    assert trial["output"].endswith("the <end>\\x1b[2J") and len(trial["output"]) < 70_000
    assert board.ask("/api/experiments/old/trials/1").status == 404


def test_views_of_ten_thousand_trials_are_small(board: Served, home: Path) -> None:
    with ended(home, "many", commit=False) as search:
        write_trials(search, 3_000)
    limits = {"curves": 600_000, "workers": 400_000, "hyperparameters": 100_000, "trials": 100_000}
    for view, max_bytes in limits.items():
        answer = board.ask(f"/api/experiments/many/{view}")
        assert answer.status == 200 and len(answer.body) < max_bytes, view
    curves = board.ask("/api/experiments/many/curves").json
    assert 2_999 in {one["trial"] for one in curves["curves"]}, "the best one"
    assert len(curves["curves"]) == 160 and curves["num_trials"] == 3_000 and curves["bins"]["times_s"]


# -- attacks by names and paths ----------------------------------------------------------------------------------------


def test_names_are_text_and_never_markup(board: Served, recorded: Recorded) -> None:
    name = "<script>alert(1)<" + "script>"
    write_trials(recorded(name), 1)
    line = board.ask("/api/experiments").json["experiments"][0]
    assert line["name"] == line["id"] == name
    quoted = name.replace("<", "%3C").replace(">", "%3E")
    assert first(board, f"/api/experiments/{quoted}/live")["name"] == name
    page = board.ask(f"/experiments/{quoted}")
    assert page.status == 200 and "alert(1)" not in page.text, "a page is the same for all experiments"


def test_scripts_insert_no_markup(repository: Path) -> None:
    for file in (repository / "src" / "fanwise" / "board" / "page").iterdir():
        text = file.read_text()
        assert text.isascii()
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert danger not in text, f"{file.name}: {danger}"
        assert not re.search(r"""(src|href|url\()=?["']?(https?:)?//""", text), f"{file.name} loads from elsewhere"
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", text), f"{file.name} has inline code"


def test_every_answer_has_the_security_headers(board: Served) -> None:
    for path in ("/", "/experiments/x", "/static/dom.js", "/api/experiments", "/nothing", "/api/experiments/none"):
        headers = board.ask(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self';") and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer" and headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers and "server" not in headers


def test_every_file_of_a_page_exists_and_is_cached(board: Served) -> None:
    for page in ("/", "/experiments/x", "/experiments/x/trials/0"):
        for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', board.ask(page).text):
            assert board.ask(path).status == 200
    plotly = board.ask("/plotly/plotly.min.js")
    assert len(plotly.body) > 1_000_000 and "javascript" in plotly.headers["content-type"]
    revalidated = board.ask("/plotly/plotly.min.js", if_none_match=plotly.headers["etag"])
    assert (revalidated.status, revalidated.body) == (304, b"")
    packed = board.ask("/plotly/plotly.min.js", accept_encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip" and gzip.decompress(packed.body) == plotly.body


PATHS_OUT = (
    "/static/../guard.py",
    "/static/..%2fguard.py",
    "/static/%2e%2e%2fguard.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/api/experiments/..",
    "/api/experiments/../live",
    "/api/experiments/%2e%2e/live",
    "/api/experiments/..%2foutside/live",
    "/api/experiments/%2e%2e%2foutside/curves",
    "/api/experiments/.%2f..%2foutside/trials/0",
    "/api/experiments/..%5coutside/curves",
    "/api/experiments/outside%00/curves",
    "/api/experiments/%2e/curves",
    "/api/experiments/linked/live",
    "/api/experiments/linked/curves",
    "/api/experiments/linked-record/curves",
    "/api/experiments//curves",
)


def test_no_path_leads_out_of_the_home(board: Served, home: Path) -> None:
    with ended(home.parent, "outside") as search:
        write_trials(search, 1)
    (home / "linked").symlink_to(home.parent / "outside")
    (home / "linked-record").mkdir()
    (home / "linked-record" / "events.jsonl").symlink_to(home.parent / "outside" / "events.jsonl")
    for path in PATHS_OUT:
        answer = board.ask(path)
        assert answer.status in (404, 405) and b"lr" not in answer.body, path


def test_links_in_the_home_are_listed_but_not_followed(board: Served, home: Path) -> None:
    with ended(home.parent, "outside") as search:
        write_trials(search, 1)
    (home / "linked").symlink_to(home.parent / "outside")
    [line] = board.ask("/api/experiments").json["experiments"]
    assert line["state"] == "unreadable" and "does not follow" in line["error"] and "trials" not in line


def test_a_log_that_is_a_link_is_not_read(board: Served, home: Path) -> None:
    with ended(home, "old") as search:
        write_trials(search, 2)
    (home.parent / "secret").write_text("the secret")
    (home / "old" / "output").mkdir()
    (home / "old" / "output" / "0.out").symlink_to(home.parent / "secret")
    os.mkfifo(home / "old" / "output" / "0.err")
    trial = board.ask("/api/experiments/old/trials/0").json
    assert (trial["output"], trial["errors"]) == ("", "")
    (home.parent / "away").mkdir()
    (home.parent / "away" / "1.out").write_text("the secret")
    (home / "old" / "output" / "0.out").unlink()
    (home / "old" / "output" / "0.err").unlink()
    (home / "old" / "output").rmdir()
    (home / "old" / "output").symlink_to(home.parent / "away")
    assert board.ask("/api/experiments/old/trials/1").json["output"] == ""


def test_reading_changes_no_file(board: Served, home: Path) -> None:
    with ended(home, "old") as search:
        write_trials(search, 12)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted((home / "old").iterdir())}
    for view in ("", "/curves", "/workers", "/rungs", "/trials", "/trials/0", "/hyperparameters"):
        assert board.ask(f"/api/experiments/old{view}").status == 200
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted((home / "old").iterdir())}


# -- access ------------------------------------------------------------------------------------------------------------

EVERY_PATH = (
    "/",
    "/experiments/live",
    "/experiments/live/trials/0",
    "/static/dom.js",
    "/static/none",
    "/api/experiments",
    "/api/live",
    "/api/experiments/live",
    "/api/experiments/live/live",
    "/api/experiments/live/curves",
    "/api/experiments/live/trials/0",
    "/nothing",
)


def test_every_request_needs_the_token(board: Served, recorded: Recorded) -> None:
    write_trials(recorded("live"), 1)
    for path in EVERY_PATH:
        answers = [
            board.ask(path, cookie=None),
            board.ask(path + "?token=wrong", cookie=None),
            board.ask(path, cookie=f"fanwise-board-{board.port}=wrong"),
            board.ask(path, cookie=f"fanwise-board-1={board.board.guard.session}"),
        ]
        for answer in answers:
            assert answer.status == 401 and "token" in answer.text and len(answer.body) < 120, path
            assert "set-cookie" not in answer.headers, path
    assert board.command("live", "stop", cookie=None).status == 401


def test_a_page_with_the_token_sets_a_cookie_and_loads_the_address_without_it(
    board: Served, recorded: Recorded
) -> None:
    write_trials(recorded("live"), 1)
    token, session = board.board.guard.token, board.board.guard.session
    for path, target in (("/", "/"), ("/experiments/live", "/experiments/live"), ("//evil.example", "/evil.example")):
        answer = board.ask(f"{path}?token={token}", cookie=None)
        assert answer.status == 200 and f'content="0;url={target}"' in answer.text and token not in answer.text
        cookie = answer.headers["set-cookie"]
        assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower() and token not in cookie
        assert cookie.startswith(f"fanwise-board-{board.port}={session};")
    assert '<a href="/%3Cb%3E%22">' in board.ask(f"/%3Cb%3E%22?token={token}", cookie=None).text


def test_scripts_can_send_the_token_with_each_request(board: Served, recorded: Recorded) -> None:
    write_trials(recorded("live"), 1)
    answer = board.ask(f"/api/experiments?token={board.board.guard.token}", cookie=None)
    assert answer.json["experiments"][0]["id"] == "live" and "set-cookie" not in answer.headers


def test_unknown_host_names_are_refused(board: Served, recorded: Recorded) -> None:
    write_trials(recorded("live"), 1)
    for path in EVERY_PATH:
        for host in ("evil.example", f"evil.example:{board.port}", "127.0.0.1.evil.example", ""):
            answer = board.ask(path, host=host)
            assert answer.status == 421 and b"live" not in answer.body, (path, host)


def test_commands_of_other_sites_are_refused(board: Served, recorded: Recorded) -> None:
    write_trials(recorded("live"), 1)
    assert board.command("live", "stop", origin="http://evil.example").status == 403
    assert board.command("live", "stop", sec_fetch_site="cross-site").status == 403
    assert board.command("live", "stop", content_type="text/plain").status == 415
    assert board.ask("/api/experiments/live/commands?word=stop").status == 404, "no link sends a command"


NO_COMMANDS = ["", "stop", "[]", "{}", '{"word": "explode"}', '{"word": "stop", "args": {}}', "[" * 100_000]


def test_malformed_commands_are_refused(board: Served, recorded: Recorded) -> None:
    write_trials(recorded("live"), 1)
    for body in (*NO_COMMANDS, '"' + "x" * 300_000):
        answer = board.ask("/api/experiments/live/commands", method="POST", body=body, content_type="application/json")
        assert answer.status == 400 and "a command" in answer.json["error"], body[:40]


def answer_to(board: Served, *parts: bytes) -> bytes:
    """Return the answer to these bytes until the board closes the connection."""
    with socket.create_connection(("127.0.0.1", board.port), timeout=30) as connection:
        answer = b""
        for part in parts:
            connection.sendall(part)
            if part is not parts[-1]:
                answer += connection.recv(1 << 16)
        while got := connection.recv(1 << 16):
            answer += got
        return answer


def test_the_end_of_a_board_closes_open_connections(home: Path) -> None:
    with ended(home, "old"):
        pass
    with serving(open_board(home, port=0)) as board, socket.create_connection(("127.0.0.1", board.port)) as client:
        head = f"POST /api/experiments/old/commands HTTP/1.1\r\nHost: 127.0.0.1:{board.port}\r\n"
        head += f"Cookie: {board.cookie}\r\n"
        rest = "Content-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        client.sendall((head + rest).encode())
        assert b" 100 " in client.recv(1000), "it waits for what never comes, longer than it takes to end"


def test_a_client_that_does_not_finish_a_request_is_disconnected(home: Path) -> None:
    with serving(open_board(home, port=0), request_s=0.3) as board:
        host = b"Host: 127.0.0.1:%d\r\nCookie: %s\r\n" % (board.port, board.cookie.encode())
        whole = b"HEAD / HTTP/1.1\r\n" + host + b"\r\n"
        assert answer_to(board, b"") == b""
        assert answer_to(board, b"GET / HTTP/1.1\r\nHost: 127") == b""
        assert answer_to(board, whole, b"GET / HT").count(b"HTTP/1.1 200 OK") == 1, "and in a second request"
        with board.events("/api/live") as events:  # a client that waits for the board is not
            first = next(events)
            within(30.0, lambda: answer_to(board, b"GET") == b"", "longer than a request may take")
            (home / "new").mkdir()
            os.mkfifo(home / "new" / "events.jsonl")
            assert next(events) != first


def test_a_request_with_two_origins_is_refused(board: Served, recorded: Recorded) -> None:
    write_trials(recorded("live"), 1)
    own = b"Origin: http://127.0.0.1:%d\r\n" % board.port
    head = b"POST /api/experiments/live/commands HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % board.port
    head += b"Cookie: %s\r\n" % board.cookie.encode()
    head += b"Connection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    assert b" 400 " in answer_to(board, head + own + b"\r\n{}"), "it is no command, but may be one"
    assert b" 403 " in answer_to(board, head + own + b"Origin: http://evil.example\r\n\r\n{}")
    assert b" 403 " in answer_to(board, head + b"Origin: \r\n\r\n{}")


def test_a_websocket_request_does_not_log_advice_to_install_a_library(
    board: Served, caplog: pytest.LogCaptureFixture
) -> None:
    answer = board.ask("/", connection="Upgrade", upgrade="websocket", sec_websocket_version="13")
    assert answer.status == 200 and "pip install" not in caplog.text


def test_a_command_to_a_finished_search_is_refused(board: Served, home: Path) -> None:
    with ended(home, "old") as search:
        write_trials(search, 1)
    answer = board.command("old", "stop_trial", 0)
    assert answer.status == 409 and "is not running" in answer.json["error"]
    assert board.command("none", "stop").status == 404


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_address_contains_a_new_token(home: Path, host: str) -> None:
    boards = [open_board(home, host=host, port=0) for _ in range(2)]
    for board in boards:
        board.listener.close()
        assert len(board.guard.token) >= 24 and len(board.guard.session) >= 24
        assert board.address.endswith(f"/?token={board.guard.token}") and board.guard.session not in board.address
    assert boards[0].guard.token != boards[1].guard.token
    assert boards[0].guard.session != boards[1].guard.session


def test_a_taken_port_is_an_error_with_advice(board: Served, home: Path) -> None:
    with pytest.raises(OSError, match="--port 0"):
        open_board(home, port=board.port)
    with pytest.raises(OSError, match="cannot listen at 'no such host'"):
        open_board(home, host="no such host", port=0)
