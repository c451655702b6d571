"""Simulated workers with distributed autograd: several in one process, each with its own threads.

    Worker.call:   tensors --on_send--> header, copies --on_receive--> function on a thread of the other --> and back
    agent.request: arguments encoded and copied as by a link, read in order by one thread of the other worker

There are no links, processes and time-outs. `kill` makes a worker lost, and `num_refused` drops messages.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.futures import Future

from fanwise.base.errors import WorkerLostError
from fanwise.rpc.autograd.service import Header, Service
from fanwise.rpc.messages.records import control_codec
from fanwise.rpc.worker_info import WorkerInfo


class FakeAgent:
    """One worker. Messages to a worker are read in order by one thread; user code runs on others."""

    def __init__(self, world: "World", id: int) -> None:
        self.info = WorkerInfo(f"worker{id}", id)
        self.incarnation = 77 + id
        self.on_lost: list[Callable[[WorkerInfo, int], None]] = []
        self.dead = False
        self.requests: list[tuple[int, str]] = []
        self.num_refused: dict[str, int] = {}  # number of messages that are dropped, by method
        self._world = world
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._pool = ThreadPoolExecutor(8)
        self._reader.start()

    def worker(self, to: int) -> WorkerInfo:
        return self._world.agents[to].info

    def on(self, method: str, handler: Callable[..., Any]) -> None:
        self._handlers[method] = handler

    def outside(self, job: Callable[[], None]) -> None:
        if not self.dead:
            self._pool.submit(job)

    def waiting(self) -> AbstractContextManager[None]:
        assert threading.current_thread() is not self._reader, "a reading thread must not wait"
        return nullcontext()

    def request(self, to: int, method: str, *args: object) -> "Future[Any]":
        self.requests.append((to, method))
        future: Future[Any] = Future()
        peer = self._world.agents[to]
        if peer.dead:
            future.set_exception(WorkerLostError(f"worker {to} is lost."))
        elif self.num_refused.get(method, 0):
            self.num_refused[method] -= 1
            future.set_exception(self._world.refusal)
        else:
            head, buffers = control_codec.dumps(args)
            copies = [memoryview(bytearray(buffer)) for buffer in buffers]
            peer._inbox.put(lambda: peer._handle(self.info, method, control_codec.loads(head, copies), future))
        return future

    def _handle(
        self,
        sender: WorkerInfo,
        method: str,
        args: tuple[Any, ...],
        future: "Future[Any]",
    ) -> None:
        if self.dead:
            future.set_exception(WorkerLostError(f"worker {self.info.id} is lost."))
            return
        answer = self._handlers[method](sender, *args)
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: future.set_result(_copied(done.value())))
        else:
            future.set_result(_copied(answer))

    def _read(self) -> None:
        while (step := self._inbox.get()) is not None:
            step()

    def close(self) -> None:
        self._inbox.put(None)
        self._reader.join()
        self._pool.shutdown()


def _copied(value: object) -> Any:
    head, buffers = control_codec.dumps(value)
    return control_codec.loads(head, [memoryview(bytearray(buffer)) for buffer in buffers])


class Worker:
    """A simulated worker: its agent and its autograd."""

    def __init__(self, world: "World", id: int) -> None:
        self.id = id
        self.agent = world.agents[id] = FakeAgent(world, id)
        self.autograd = Service(self.agent)  # type: ignore[arg-type]  # a fake
        self._world = world

    def call(self, to: int, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as rpc_sync does: send the arguments, run it there, send back the result."""
        peer = self._world.workers[to]
        header, sent = self._seal(args, to)
        return self._world.in_thread(lambda: peer._serve(self, header, sent, function))

    def _serve(
        self,
        caller: "Worker",
        header: Header | None,
        sent: list[Any],
        function: Callable[..., Any],
    ) -> Any:
        args = self.opened(caller.id, header, sent)
        with nullcontext() if header is None else self.autograd.entered(header):
            value = function(*args)
            reply, tensors = self._seal((value,), caller.id)
        # Like a reply, it is opened on the thread that waits.
        return caller.opened(self.id, reply, tensors)[0]

    def _seal(self, values: Sequence[Any], to: int) -> tuple[Header | None, list[Any]]:
        tensors = [leaf for value in values for leaf in _tensors(value)]
        header = self.autograd.on_send(to, tensors)
        return header, [_bare(value) for value in values]

    def opened(self, sender: int, header: Header | None, values: Sequence[Any]) -> list[Any]:
        tensors = [leaf for value in values for leaf in _tensors(value)]
        if header is not None:
            tensors = self.autograd.on_receive(sender, header, tensors)
        remaining = iter(tensors)
        return [_filled(value, remaining) for value in values]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _bare(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return [_bare(item) for item in value] if isinstance(value, (list, tuple)) else value


def _filled(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return next(tensors)
    return [_filled(item, tensors) for item in value] if isinstance(value, list) else value


class World:
    """Four simulated workers."""

    def __init__(self, size: int = 4) -> None:
        self.refusal: Exception = RuntimeError("refused")
        self.agents: dict[int, FakeAgent] = {}
        self.workers = [Worker(self, id) for id in range(size)]

    def __getitem__(self, id: int) -> Worker:
        return self.workers[id]

    def in_thread(self, job: Callable[[], Any]) -> Any:
        """Run a job on a new thread, as on another worker."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(job).result()

    def send(self, context_id: int, source: int, to: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Send one message in the context."""
        sender, receiver = self.workers[source], self.workers[to]
        with sender.autograd.entered((context_id, 0)):
            header, bare = sender._seal(tensors, to)
        received: list[torch.Tensor] = receiver.opened(source, header, bare)
        return received

    def kill(self, id: int) -> None:
        """Lose worker `id`. All others learn it at once."""
        self.agents[id].dead = True
        for other in self.agents.values():
            if not other.dead:
                for callback in other.on_lost:
                    callback(self.agents[id].info, self.agents[id].incarnation)

    def close(self) -> None:
        for agent in self.agents.values():
            agent.close()
