"""The record of a search that was simulated: as a tuner would have written it, in a fraction of the time.

    record_simulated(folder, scheduler, table, stop, n_workers=4, name="asha")

It can be read, replayed and, with an objective of the table's space, resumed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fanwise.tune.core.actions import Action
from fanwise.tune.core.events import Event
from fanwise.tune.program import save_program
from fanwise.tune.record.event_codec import to_row
from fanwise.tune.record.log import Record
from fanwise.tune.schedulers.scheduler import Scheduler
from fanwise.tune.search_settings import SearchSettings
from fanwise.tune.simulate import Faults, simulate
from fanwise.tune.simulate.tables import Table
from fanwise.tune.stopping import StoppingCriterion


def record_simulated(
    folder: Path,
    scheduler: Scheduler,
    table: Table,
    stop: StoppingCriterion,
    *,
    n_workers: int,
    seed: int = 0,
    objective: Callable[..., Any] = print,  # Any: objectives return what they like
    faults: Faults | None = None,
    suggest_s: float = 0.0,
    keep: Callable[[Event], bool] = lambda event: True,
    **settings: Any,  # Any: those of `simulate` that `SearchCore` has too
) -> None:
    """Simulate and record. `keep`: says of each event whether it is recorded; the first that is not ends the record."""
    options = {name: value for name, value in settings.items() if name != "checkpoints"}  # of `simulate`: a bool
    recorded = SearchSettings.create(table.space, scheduler, stop, n_workers=n_workers, default_seed=seed, **options)
    meta = recorded.new_metadata(folder.name, getattr(objective, "__name__", "objective"))
    with Record.create(folder, meta) as record:
        save_program(folder, objective, recorded.scheduler, table.space)
        is_open = True

        def note(event: Event, actions: list[Action]) -> None:
            nonlocal is_open
            is_open = is_open and keep(event)
            if is_open:
                kind, trial_id, body = to_row(event, actions)
                if record.append(event.now_s, kind, trial_id, body) % 1000 == 0:
                    record.commit()

        simulate(
            scheduler,
            table,
            stop,
            n_workers=n_workers,
            seed=recorded.seed,
            faults=faults,
            suggest_s=suggest_s,
            on_event=note,
            **settings,
        )
