"""Configurations for new trials, which users enqueue or the searcher suggests, possibly ahead of time.

    state       event                       action, next state
    ---------   -------------------------   --------------------------------------------------------------------
    idle        request                     Suggest; requested
    requested   receive a configuration     ready
    requested   receive None                exhausted; no slot waits any more
    requested   receive an error            idle; the search fails
    requested   fall_back                   a random configuration; idle
    ready       take_suggestion             the configuration; idle
    exhausted   refresh: a report, a freed  idle
                slot, or a newly enqueued
                configuration
    any         reset: a resumed search     ready stays ready; otherwise idle, because the request is lost

While `is_awaited` is set, a free slot waits for the suggestion, because the scheduler has answered `New()`. The
scheduler is not asked again until the suggestion arrives. If the searcher has a time limit, the wait has a deadline.
Enqueued configurations are taken before suggestions, in any state.
"""

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, final

from ..rng import KeyedRandom
from ..searchers.searcher import Searcher, SuggestContext
from ..space import Space
from ..values import plain_json_or_name
from .actions import Action, Suggest
from .events import Suggested
from .validation import checked_config

Config: TypeAlias = Mapping[str, object]


@final
class SuggestionSource:
    """The source of configurations of one search.

    Args:
        searcher: the searcher, which is not called here. The action `Suggest` requests suggestions.
        actions: the actions of the current event, to which this class appends.

    Attributes:
        enqueued: configurations that users enqueued.
        timeout_s: time limit of the searcher in seconds. None: no limit.
        deadline_s: time at which the slot stops waiting for the suggestion. None: no limit.
    """

    def __init__(self, searcher: Searcher, space: Space, seed: int, actions: list[Action]) -> None:
        self._name = f"{type(searcher).__name__}.suggest()"
        self._runs_inline = searcher.runs_inline
        self.timeout_s = None if searcher.runs_inline else searcher.suggest_timeout_s
        self._space = space
        self._seed = seed
        self._actions = actions
        self.state: Literal["idle", "requested", "ready", "exhausted"] = "idle"
        self.is_awaited = False
        self.deadline_s: float | None = None
        self.enqueued: deque[Config] = deque()
        self._suggestion: Config = {}  # valid in state `ready`
        self._num_requests = 0

    def enqueue(self, config: Config) -> None:
        self.enqueued.append(config)
        self.refresh()

    def take_enqueued(self) -> Config:
        self.is_awaited = False
        return self.enqueued.popleft()

    def take_suggestion(self) -> Config:
        self.state, self.is_awaited = "idle", False
        return self._suggestion

    def request(self, trial_id: int, pending: Mapping[int, Config], now_s: float) -> None:
        """Request a suggestion for the next new trial, unless one is requested or ready."""
        if self.state != "idle":
            return
        context = SuggestContext(
            self._num_requests,
            trial_id,
            self._space,
            seed=self._seed,
            purpose="suggest",
            # A searcher in its own thread gets a copy, because trials start and end while it reads.
            pending=MappingProxyType(pending) if self._runs_inline else dict(pending),
            now_s=now_s,
            suggest_timeout_s=self.timeout_s,
        )
        self._actions.append(Suggest(self._num_requests, context))
        self._num_requests += 1
        self.state = "requested"

    def wait(self, trial_id: int, pending: Mapping[int, Config], now_s: float) -> None:
        """Let a free slot wait for the suggestion, requesting one if needed. Later calls keep the deadline."""
        if self.timeout_s is not None and not self.is_awaited:
            self.deadline_s = now_s + self.timeout_s
        self.is_awaited = True
        self.request(trial_id, pending, now_s)

    def is_requested(self, number: int) -> bool:
        """Return True if request `number` is pending. Otherwise its answer is late."""
        return self.state == "requested" and number == self._num_requests - 1

    def receive(self, event: Suggested, trial_id: int) -> None:
        """Store the answer to the pending request. Raise InvalidAnswer if the configuration is invalid."""
        self.state, self.deadline_s = "idle", None
        if event.config is not None and event.error is None:
            self._suggestion = checked_config(event.config, self._space, self._name, trial_id)
            self.state = "ready"
        elif event.error is None:
            self.state, self.is_awaited = "exhausted", False

    def take_deadline(self, now_s: float) -> bool:
        """Return True if the deadline has passed, and clear it."""
        if self.deadline_s is None or now_s < self.deadline_s:
            return False
        self.deadline_s = None
        return True

    def fall_back(self) -> Config:
        """Stop waiting for the pending request. Return a random configuration."""
        self.state, self.is_awaited = "idle", False
        return self._space.sample(KeyedRandom(f"{self._seed}/fallback/{self._num_requests - 1}"))

    def refresh(self) -> None:
        """Allow requests to an exhausted searcher again, because the search has changed."""
        if self.state == "exhausted":
            self.state = "idle"

    def reset(self) -> None:
        """Drop the pending request of an interrupted search. Keep a ready suggestion."""
        if self.state != "ready":
            self.state = "idle"
        self.is_awaited, self.deadline_s = False, None


def plain_suggestion(searcher: Searcher, action: Suggest) -> Config | None:
    """Call the searcher and return its suggestion as JSON values, in which Python objects are replaced by names."""
    config = searcher.suggest(action.context)
    if not isinstance(config, Mapping):
        return config
    try:
        return {name: plain_json_or_name(name, value) for name, value in config.items()}
    except ValueError:  # a NaN, which `checked_config` refuses later with a better message
        return config


def call_searcher(searcher: Searcher, action: Suggest, now_s: float, *, last_seen_seq: int = 0) -> Suggested:
    """Call the searcher and return its suggestion, or its exception, as an event. An exception ends the search."""
    try:
        return Suggested(now_s, action.number, plain_suggestion(searcher, action), last_seen_seq)
    except Exception as error:  # user code may raise any exception, which ends the search
        return failed_suggestion(searcher, action, error, now_s=now_s, last_seen_seq=last_seen_seq)


def failed_suggestion(
    searcher: Searcher, action: Suggest, error: BaseException, *, now_s: float, last_seen_seq: int
) -> Suggested:
    lines = [f"the searcher {type(searcher).__name__} raised {type(error).__name__}: {error}"]
    text = "\n".join([*lines, *getattr(error, "__notes__", ())])
    return Suggested(now_s, action.number, None, last_seen_seq, text, error)
