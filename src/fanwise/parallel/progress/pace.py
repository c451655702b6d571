"""How fast a training goes, how long it still takes, and what is said of it. A quiet file: it is told facts and times.

    epoch, begin_pass, worked --> Pace --snapshot--> RunSnapshot --line_parts, fitting--> the words of one line

Time is either at work (from the begin of a pass over the data to its last step) or between (evaluation, saving).
The rate is samples over time at work, in which what is longer ago counts less. The time left is the samples left by
that rate, and the time between for each epoch that is left. Nothing of it influences the training.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...base.text import printable_line

# What happened so long ago counts 1/e of what happens now.
_MEMORY_S = 10.0
_MOST_NAME = 40
_GAP = 2  # blanks between two parts
_DRAWING_SHARE = 0.02  # of the time


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """All that a line shows of a run at one moment. None: not known, or there is no such thing.

    `epoch` counts from 0; `done` and `of` are samples of this epoch; `left_s` is until the end of the loop over the
    epochs, or of the pass where there is no loop. `measured` is the part of an evaluation that is under way.
    """

    name: str
    devices: tuple[str, ...]
    epoch: int | None
    epochs: int | None
    done: int
    of: int | None
    rate: float | None
    loss: float | None
    left_s: float | None
    elapsed_s: float
    measured: float | None = None
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class LinePart:
    """A part of the line. The higher its drop order, the sooner it is left out where there is no room."""

    drop_order: int
    text: str
    style: str = ""


class Pace:
    """The counts and times of one run. Times are monotonic seconds and do not go back."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._epoch: int | None = None
        self._epochs: int | None = None
        self._done = 0  # samples of this epoch
        self._ahead: int | None = None  # samples of all its passes, as announced
        self._whole: int | None = None  # samples of the epoch before
        self._busy_until_s: float | None = None  # what is before that is counted
        self._has_worked = False
        self._between_s = 0.0  # in this epoch
        self._between_before_s = 0.0  # in the whole epoch before
        self._recent_samples = self._recent_s = 0.0
        self._all_samples, self._all_s = 0, 0.0

    def epoch(self, number: int, count: int, now_s: float) -> None:
        """Epoch `number`, from 0, of a loop of `count` begins. One that does not follow is of another loop."""
        self._rest(now_s)
        follows = self._epoch is not None and (number, count) == (self._epoch + 1, self._epochs)
        self._whole = self._done if follows and self._done else None
        self._between_before_s = self._between_s if follows else 0.0
        self._epoch, self._epochs = number, count
        self._done, self._ahead, self._between_s = 0, None, 0.0

    def begin_pass(self, length: int | None, done: int, now_s: float) -> None:
        """A pass over `length` samples begins, of which `done` were done with before the run was resumed.

        None: how many there are is not known before.
        """
        self._rest(now_s)
        if self._epochs is None and self._ahead is not None and self._done >= self._ahead:
            self._done, self._ahead = 0, None  # without a loop each pass stands for itself
        if length is not None:
            self._ahead = (self._ahead or 0) + length
        self._done += done

    def _rest(self, now_s: float) -> None:
        if self._busy_until_s is not None:
            self._between_s += now_s - self._busy_until_s
        self._busy_until_s = now_s

    def worked(self, samples: int, now_s: float) -> None:
        """So many samples since the last call, up to now. The first call of a run is not rated.

        Much is loaded and prepared in the first step, which the others do not do again.
        """
        self._done += samples
        if self._busy_until_s is not None and self._has_worked:
            seconds = now_s - self._busy_until_s
            kept = math.exp(-seconds / _MEMORY_S)
            self._recent_samples = kept * self._recent_samples + samples
            self._recent_s = kept * self._recent_s + seconds
            self._all_samples += samples
            self._all_s += seconds
        self._busy_until_s = now_s
        self._has_worked = True

    def snapshot(
        self,
        name: str,
        devices: Sequence[str],
        loss: float | None,
        now_s: float,
        *,
        measured: float | None = None,
        is_over: bool = False,
    ) -> RunSnapshot:
        """What is to be shown. At the end of the run the rate is that of all its time at work."""
        of = self._length()
        samples, seconds = self._recent_samples, self._recent_s
        if is_over:
            samples, seconds = self._all_samples, self._all_s
        rate = samples / seconds if samples > 0 and seconds > 0 else None
        return RunSnapshot(
            name=name,
            devices=tuple(devices),
            epoch=self._epoch,
            epochs=self._epochs,
            done=self._done,
            of=of,
            rate=rate,
            loss=loss,
            left_s=None if is_over else self._left_s(of, rate, now_s),
            elapsed_s=now_s - self._began_s,
            measured=measured,
            is_over=is_over,
        )

    def _length(self) -> int | None:
        """Samples of this epoch: as many as the last one had, else as were announced; never fewer than are done."""
        known = self._ahead if self._whole is None else self._whole
        return None if known is None else max(known, self._done)

    def _left_s(self, of: int | None, rate: float | None, now_s: float) -> float | None:
        if of is None or rate is None:
            return None
        epochs_after = 0 if self._epoch is None or self._epochs is None else self._epochs - self._epoch - 1
        rested_s = self._between_s + (0.0 if self._busy_until_s is None else now_s - self._busy_until_s)
        between_s = max(0.0, self._between_before_s - rested_s) + self._between_before_s * epochs_after
        return (of - self._done + epochs_after * of) / rate + between_s


def next_look_s(now_s: float, every_s: float, took_s: float) -> float:
    """When to draw again, if the last drawing took so long: a slow terminal does not slow the training."""
    return now_s + max(every_s, took_s / _DRAWING_SHARE)


# ---- words


def line_parts(snapshot: RunSnapshot) -> list[LinePart]:
    """The parts of the line, in order. All of it is printable and in one line."""
    made = []
    if snapshot.name:
        made.append(LinePart(7, _name(snapshot.name), "bold"))
    if snapshot.epoch is not None and snapshot.epochs is not None:
        made.append(LinePart(0, f"epoch {snapshot.epoch + 1}/{snapshot.epochs}", "cyan"))
    if snapshot.measured is not None:
        made.append(LinePart(4, f"measuring {100 * snapshot.measured:.0f} %"))
    elif not snapshot.is_over:
        of = "" if snapshot.of is None else f"/{snapshot.of:,}"
        made.append(LinePart(4, f"{snapshot.done:,}{of} samples"))
    if snapshot.loss is not None:
        made.append(LinePart(1, f"loss {snapshot.loss:.4g}"))
    if snapshot.rate is not None:
        made.append(LinePart(3, f"{_number(snapshot.rate)} samples/s"))
    if snapshot.is_over:
        made.append(LinePart(2, f"in {duration(snapshot.elapsed_s)}"))
    elif snapshot.left_s is not None:
        made.append(LinePart(2, f"{duration(snapshot.left_s)} left"))
    if snapshot.devices:
        made.append(LinePart(5, _devices(snapshot.devices), "dim"))
    return made


def fitting(line: Sequence[LinePart], width: int) -> list[LinePart]:
    """The most important parts that fit side by side into `width` columns, in order; at least one."""
    kept: set[int] = set()
    left = width + _GAP
    for place in sorted(range(len(line)), key=lambda place: line[place].drop_order):
        needed = len(line[place].text) + _GAP
        if needed <= left or not kept:
            kept.add(place)
            left -= needed
    return [line[place] for place in sorted(kept)]


def plain(line: Iterable[LinePart]) -> str:
    """The line of a log.

    >>> plain([LinePart(0, "epoch 1/2"), LinePart(1, "loss 0.5")])
    'epoch 1/2, loss 0.5'
    """
    return ", ".join(part.text for part in line)


def duration(seconds: float) -> str:
    """In the form of a clock, rounded up to seconds; long ones in days and hours.

    >>> duration(75.2), duration(3600.0), duration(200_000.0)
    ('1:16', '1:00:00', '2 d 8 h')
    """
    whole = math.ceil(seconds)
    if whole >= 2 * 86400:
        hours = math.ceil(seconds / 3600)
        return f"{hours // 24:,} d {hours % 24} h"
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def _number(value: float) -> str:
    """Three digits that matter, and all before the point.

    >>> _number(12345.6), _number(12.34), _number(0.01234), _number(2.5e6)
    ('12,346', '12.3', '0.0123', '2.50 M')
    """
    if value >= 1e6:
        return f"{value / 1e6:,.2f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _devices(names: Sequence[str]) -> str:
    """
    >>> _devices(["cpu", "cpu"]), _devices(["cuda:0", "cuda:1"]), _devices(["cpu"])
    ('2 x cpu', 'cuda:0 cuda:1', 'cpu')
    """
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    shown = [_name(name) if count == 1 else f"{count} x {_name(name)}" for name, count in counts.items()]
    return " ".join(shown) if len(shown) <= 4 else f"{len(names)} devices"


def _name(text: str) -> str:
    shown = printable_line(text)
    return shown if len(shown) <= _MOST_NAME else f"{shown[: _MOST_NAME - 3]}..."
