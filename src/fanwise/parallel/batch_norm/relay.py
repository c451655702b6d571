"""Functions of one process that take turns: exactly one is at work, until it meets the others or ends. Threads only.

    member 0               ---meet              ---meet              ---end
    member 1                      ---meet              ---meet              ---end
    the last one, caller                 ---meet              ---meet              ---end
                                            joined               joined

A round goes through the members in their order. The last member is the caller's own thread, so what they bring is
joined there, and with one member there is no other thread. Who is at work is decided by this order, never by time.

When a member raises, and when the caller is interrupted, the others are unwound, one after another: each that waits in
a meeting raises there, and ends. Then the caller raises what the first one raised.
"""

import contextvars
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

B = TypeVar("B")  # what a member brings to a meeting
J = TypeVar("J")  # what it is joined to
R = TypeVar("R")  # what a member returns


class _OtherMemberFailed(BaseException):
    """Another member has failed. No Exception, so that the code between lets it pass."""


class TurnContext(Protocol):
    """What is in force while it is a member's turn, such as its buffers in the place of the model's."""

    def enter(self) -> None:
        """Its turn begins."""
        ...

    def leave(self) -> None:
        """Its turn ends. Not called for the caller when it has failed."""
        ...


class Relay(Generic[B, J, R]):
    """One race of it; see the module.

    Args:
        contexts: one for each member. work: what a member does, by its number.
        join: called at each meeting with what the members have brought in their order; None for one that has ended. It
            must raise if somebody has ended.
    """

    def __init__(
        self, contexts: Sequence[TurnContext], work: Callable[[int], R], join: Callable[[Sequence[B | None]], J]
    ) -> None:
        self._contexts = contexts
        self._work = work
        self._join = join
        count = len(contexts)
        self._last = count - 1
        self._turn = self._last
        self._calls: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(count)]
        self._brought: list[B | None] = [None] * count
        self._joined: list[J] = []  # of the last meeting
        self._results: dict[int, R] = {}
        self._has_ended = [True] * count
        self._is_over = False
        self._cause: BaseException | None = None

    @property
    def turn(self) -> int:
        """The member at work."""
        return self._turn

    def run(self) -> list[R]:
        """What the members return. Blocks until all have ended. Raises what the first one raised, or `join`."""
        threads: list[threading.Thread] = []
        try:
            for member in range(self._last):
                # Started with a copy each, so a job of the pool is the current one in all of them.
                context = contextvars.copy_context()
                thread = threading.Thread(target=context.run, args=(self._other, member), daemon=True)
                thread.start()
                threads.append(thread)
                self._has_ended[member] = False
            self._pass_on()
            self._results[self._last] = self._work(self._last)
            while not all(self._has_ended[: self._last]):
                if any(each is not None for each in self._brought):
                    self._meet_here()
                self._pass_on()
        except BaseException as error:
            self._unwind(threads)
            if self._cause is not None and isinstance(error, _OtherMemberFailed):
                raise self._cause from None
            raise
        self._unwind(threads)
        if self._cause is not None:
            raise self._cause
        return [self._results[member] for member in range(self._last + 1)]

    def meet(self, brought: B) -> J:
        """Called by the member at work: wait until all others have brought something, too; what it is joined to."""
        member = self._turn
        if self._is_over:
            raise _OtherMemberFailed
        self._brought[member] = brought
        if member == self._last:
            self._meet_here()
        self._pass_on()
        return self._joined[0]

    def _meet_here(self) -> None:
        brought, self._brought = self._brought, [None] * len(self._brought)
        try:
            self._joined = [self._join(brought)]
        except BaseException as error:
            self._cause, self._is_over = error, True
            raise _OtherMemberFailed from None  # the work of the caller is to let it pass, as that of the others

    def _pass_on(self) -> None:
        """End the turn of the member at work, and wait until it comes again."""
        member = self._turn
        if self._last == 0:
            return
        self._contexts[member].leave()
        self._call(self._after(member))
        self._wait(member)
        self._contexts[member].enter()
        if self._is_over:
            raise _OtherMemberFailed

    def _after(self, member: int) -> int:
        if self._is_over:
            return self._last
        first = 0 if member == self._last else member + 1
        return next((other for other in range(first, self._last) if not self._has_ended[other]), self._last)

    def _call(self, member: int) -> None:
        self._turn = member
        self._calls[member].put(None)

    def _wait(self, member: int) -> None:
        while self._turn != member:
            self._calls[member].get()

    def _other(self, member: int) -> None:
        """All that a member does which is not the caller."""
        self._wait(member)
        self._contexts[member].enter()
        try:
            if not self._is_over:
                self._results[member] = self._work(member)
        except _OtherMemberFailed:
            pass
        except BaseException as error:  # it is raised by the caller
            if not self._is_over:
                self._cause, self._is_over = error, True
        finally:
            self._contexts[member].leave()
            self._has_ended[member] = True
            self._call(self._after(member))

    def _unwind(self, threads: Sequence[threading.Thread]) -> None:
        """Have every member end. An interrupt meanwhile is raised when that is done: they use what the caller owns."""
        self._is_over = True
        interrupt: BaseException | None = None
        for member, thread in enumerate(threads):
            while not self._has_ended[member] or thread.is_alive():
                try:
                    if self._has_ended[member]:
                        thread.join()
                        continue
                    if self._turn == self._last:
                        self._turn = member
                    self._calls[self._turn].put(None)  # an interrupt may have come between a turn and its call
                    self._wait(self._last)
                except BaseException as error:
                    interrupt = error
        if interrupt is not None:
            raise interrupt
