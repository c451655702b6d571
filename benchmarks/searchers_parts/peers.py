"""Searches of other libraries as schedulers of ours, so that the same simulator drives them on the same tables.

    simulate --next, on_report, on_end--> PeerScheduler --JSON lines--> peers/searchers_<library>.py

The peer's program runs in an environment of its own, beside which it has nothing of ours. It gets the same space, the
resource and the loss of every report, in the order in which they happen on the virtual clock, and says which
configuration is tried next and who is stopped: its own samplers and schedulers decide, as they would in its own loop.
What its tuner adds (polling, storage, processes) plays no part.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, final

from fanwise.tune.schedulers import Decision, New, NextTrial, Resume, Scheduler, Status, Wait
from fanwise.tune.searchers import Mode, Observation, SuggestContext
from fanwise.tune.space import Space

PEERS = Path(__file__).resolve().parents[1] / "peers"


@final
class PeerScheduler(Scheduler):
    """Asks a peer's process, which begins with the search. `close` ends it.

    Args:
        interpreter: of the peer's environment.
        program: under benchmarks/peers.
        method: as the program knows it.
        max_resource: where a training ends.
        n_workers: how many trials run at a time.
    """

    def __init__(
        self,
        interpreter: Path,
        program: str,
        method: str,
        *,
        metric: str,
        mode: Mode,
        resource_attr: str,
        max_resource: int,
        n_workers: int,
    ) -> None:
        super().__init__(metric=metric, mode=mode, resource_attr=resource_attr)
        self.suggest_s: list[float] = []
        self._command = [str(interpreter), str(PEERS / program)]
        self._method = method
        self._max_resource = max_resource
        self._n_workers = n_workers
        self._process: subprocess.Popen[str] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """There is one process, and who made this one closes it."""
        return self

    def check(self, space: Space) -> None:
        if space.conditions:
            raise ValueError("the lines to the peers have no words for conditions")

    def begin(self, space: Space, seed: int) -> None:
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._constants = space.constants
        self._said = tempfile.TemporaryFile("w+")  # a pipe that nobody reads would stop it one day
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, env=variables
        )
        domains = {name: (domain.domain_type, dict(domain.settings())) for name, domain in space.domains.items()}
        self._tell(
            method=self._method, seed=seed, n_workers=self._n_workers, max_resource=self._max_resource, space=domains
        )

    def next(self, ask: SuggestContext) -> NextTrial:
        answer = self._ask(suggest=ask.trial_id)
        if "wait" in answer:
            return Wait()
        if "resume" in answer:
            return Resume(answer["resume"])
        self.suggest_s.append(answer["seconds"])
        return New({**answer["config"], **self._constants})

    def on_report(self, observation: Observation) -> Decision:
        answer = self._ask(report=observation.trial_id, resource=int(observation.resource), loss=observation.loss)
        return Decision(answer["decision"])

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        raise ValueError("the lines to the peers have no words for attempts that were lost")

    def on_end(self, trial_id: int, status: Status) -> None:
        self._tell(end=trial_id)

    def describe(self) -> dict[str, object]:
        return {"name": "PeerScheduler", "method": self._method, "command": self._command}

    def close(self) -> None:
        """End the peer's process. Blocks until it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._said.close()

    def _tell(self, **what: object) -> None:
        assert self._process is not None and self._process.stdin is not None, "begin comes first"
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def _ask(self, **what: object) -> Mapping[str, Any]:
        self._tell(**what)
        assert self._process is not None and self._process.stdout is not None, "begin comes first"
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def _failed(self) -> RuntimeError:
        assert self._process is not None, "begin comes first"
        self._process.communicate()
        self._said.seek(0)
        said = self._said.read().strip().splitlines()
        return RuntimeError(f"{self._command[1]} ended at {self._method}: {said[-1] if said else 'it said nothing'}")
