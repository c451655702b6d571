"""Values to messages and back: pickling, the table of tensors, and what autograd and references send metadata.

    serialize:    value --encode--> pickle, tensors --autograd.on_send--> metadata --> Message
    deserialize:  Message --> tensors, on their devices --autograd.on_receive--> tensors with history --decode--> value

Autograd and references register themselves; without them a call carries nothing of theirs.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from ...base.errors import WireError
from ...links.link import Link
from ..allow_list.allowing import Allowed
from ..devices.device_maps import DeviceMaps
from ..devices.lending import Lending
from ..references.orders import Fork
from ..worker_info import WorkerInfo
from . import pickling
from .messages import BARE_ANSWER, BARE_CALL, Message, Parsed, compose, is_answer, metadata_of, parse
from .metadata import NOTHING, Context, Created, Metadata, pack, unpack


class Autograd(Protocol):
    """What distributed autograd adds to a message. Called for every message while a context may be open."""

    @property
    def has_current(self) -> bool:
        """Whether this thread is in a context."""

    def on_send(self, to: int, tensors: Sequence[torch.Tensor]) -> Context | None:
        """What to send along: None outside of a context."""

    def on_receive(self, sender: int, header: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors with their history."""

    def entered(self, header: Context) -> AbstractContextManager[object]:
        """The context of the message is the one of this thread meanwhile."""

    def unsent(self, header: Context) -> None:
        """A message never left: forget what `on_send` noted of it."""


class References(Protocol):
    """What references add to a message: the forks that it carries."""

    def receiving(self, forks: Sequence[Fork], link: Link | None) -> AbstractContextManager[None]:
        """Around the unpickling. Raises LinkLostError when the link that brought them was cut."""

    def unsent(self, forks: Sequence[Fork]) -> None:
        """A message with these forks never left."""


class Deserialized(NamedTuple):
    """A message: its value, and what came metadata."""

    value: Any  # Any: the user's
    autograd: Context | None = None
    remote: Created | None = None
    has_references: bool = False
    window: tuple[int, int] | None = None  # of a call for items one by one


class Serializer:
    """See the module.

    Args:
        allowed: what values may name; None: anything.
        name_of: of a worker, by its id.

    Attributes:
        autograd: set while distributed autograd is in use.
    """

    def __init__(
        self,
        *,
        references: References | None = None,
        lending: Lending | None = None,
        allowed: Allowed | None = None,
        devices: DeviceMaps | None = None,
        name_of: Callable[[int], str] = str,
    ) -> None:
        self.autograd: Autograd | None = None
        self.allowed = allowed
        self._references = references
        self._lending = lending
        self._devices = devices or DeviceMaps({}, ())
        self._name_of = name_of

    @property
    def records_history(self) -> bool:
        """Whether this thread is in a context of distributed autograd."""
        return self.autograd is not None and self.autograd.has_current

    def serialize(
        self,
        value: Any,
        to: int,
        *,
        call: str | None = None,
        remote: Created | None = None,
        window: tuple[int, int] | None = None,
    ) -> Message:
        """Close a message for worker `to`: a call by its name, or an answer. Raises what pickling raises.

        `window`: of a call for items one by one.
        """
        forks: list[Fork] = []
        kept: list[Any] = []  # Any: references
        lender = None
        try:
            if call is None:
                data, tensors, buffers = pickling.encode(value, to, forks)
            else:
                data, tensors, buffers = pickling.encode_call(value, to, forks, kept)
            header = None if self.autograd is None else self.autograd.on_send(to, tensors)
            places = self._places(tensors, to, is_call=call is not None) if tensors else None
            if tensors and self._lending is not None:
                targets = None if call is None else places or ["cpu"] * len(tensors)
                lender = self._lending.lender(tensors, to, targets)
            extra = b""
            if forks or header is not None or remote is not None or places is not None or window is not None:
                extra = pack(Metadata(header, remote, forks, places, window))
            message = compose(extra, tensors, data, buffers, call, lender)
            if kept:
                message = message._replace(keeps=tuple(kept))
            if forks or remote is not None:
                carried = [(fork.rref_id, fork.fork_id) for fork in forks]
                message = message._replace(carries=(*carried, *([] if remote is None else [remote])))
            return message
        except BaseException:
            if lender is not None:
                lender.take_back()
            if forks and self._references is not None:
                self._references.unsent(forks)
            raise

    def _places(self, tensors: Sequence[torch.Tensor], to: int, *, is_call: bool) -> list[str] | None:
        """Where tensors of a call shall be there; where those of an answer are here. None: all on the CPU."""
        if is_call and self._devices.maps:
            name = self._name_of(to)
            return [str(self._devices.there(name, tensor.device)) for tensor in tensors]
        for tensor in tensors:
            if not tensor.is_cpu:
                return [str(tensor.device) for tensor in tensors]
        return None

    def _borrowed(self, message: Message, sender: int) -> tuple[Metadata, Parsed]:
        """What went along with a message with loans, and the rest of it: its tensors are copies of our own."""
        assert self._lending is not None and message.received_loans is not None, "it made them"
        metadata = unpack(metadata_of(message))
        place = self._place(metadata.places, message, sender)
        with self._lending.borrowing(
            message.received_loans, WorkerInfo(self._name_of(sender), sender), place
        ) as borrow:
            parts = parse(message, borrow)
        return metadata, parts._replace(tensors=self._placed(parts.tensors, metadata.places, message, sender))

    def _placed(self, tensors: list[Any], places: Sequence[str] | None, message: Message, sender: int) -> list[Any]:
        place = self._place(places, message, sender)
        return [_on(tensor, place(number)) for number, tensor in enumerate(tensors)]

    def _place(self, places: Sequence[str] | None, message: Message, sender: int) -> Callable[[int], torch.device]:
        """Where the tensors of a message shall be, by their numbers."""
        name = self._name_of(sender) if is_answer(message) else None

        def place(number: int) -> torch.device:
            if places is not None and number >= len(places):
                raise WireError(f"a message says where {len(places)} of its tensors shall be, and has more.")
            device = torch.device("cpu" if places is None else places[number])
            return device if name is None else self._devices.here(name, device)

        return place

    def deserialize(self, message: Message, sender: int, link: Link | None = None) -> Deserialized:
        """Open a message of worker `sender`, which came over `link`. Runs what unpickling the user's values runs."""
        kind = message.head[0]
        if kind == BARE_ANSWER:  # these two as below; most are so
            return Deserialized(pickling.decode(memoryview(message.head)[1:], [], message.buffers, self.allowed))
        if kind == BARE_CALL:
            return Deserialized(pickling.decode_call(memoryview(message.head)[1:], [], message.buffers, self.allowed))
        if message.received_loans is None:
            extra, tensors, data, buffers = parse(message)
            header, remote, forks, places, window = unpack(extra) if extra else NOTHING
            if tensors and (places is not None or self._devices.maps):
                tensors = self._placed(tensors, places, message, sender)
        else:
            (header, remote, forks, _, window), (_, tensors, data, buffers) = self._borrowed(message, sender)
        if header is not None and self.autograd is not None:
            tensors = self.autograd.on_receive(sender, header, tensors)
        decode = pickling.decode if is_answer(message) else pickling.decode_call
        try:
            if self._references is None or not forks:
                return Deserialized(decode(data, tensors, buffers, self.allowed), header, remote, window=window)
            with self._references.receiving(forks, link):
                value = decode(data, tensors, buffers, self.allowed)
        except Exception as error:
            if remote is None:
                raise
            # The reference is out already, and may have been handed on: its value is this error.
            return Deserialized((partial(_fail, error), (), {}), header, remote, has_references=bool(forks))
        return Deserialized(value, header, remote, has_references=True, window=window)

    def take_back(self, message: Message, to: int) -> None:
        """A message that was closed here never left: what it holds is given back. Not on a reading thread.

        `to`: the worker that it was for.
        """
        if message.loans and self._lending is not None:
            self._lending.take_back(message.loans, to)
        header, _remote, forks, *_ = unpack(metadata_of(message))
        if header is not None and self.autograd is not None:
            self.autograd.unsent(header)
        if forks and self._references is not None:
            self._references.unsent(forks)

    def discard(self, message: Message, link: Link | None) -> None:
        """A message that came over `link` is not opened: what came with it is given back. Not on a reading thread.

        Raises LinkLostError when the link was cut: then that does so.
        """
        forks = unpack(metadata_of(message)).forks
        if forks and self._references is not None:
            with self._references.receiving(forks, link):
                pass

    def entered(self, header: Context | None) -> AbstractContextManager[object]:
        """While the user's function of a message with this header runs."""
        return nullcontext() if header is None or self.autograd is None else self.autograd.entered(header)


def _fail(error: Exception) -> None:
    """In the place of a function that could not be read."""
    raise error


def _on(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor that came, on its device."""
    if device == tensor.device:
        return tensor
    moved = tensor.detach().to(device)
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
    return moved.requires_grad_(tensor.requires_grad)
