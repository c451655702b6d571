"""Values to messages and back: pickling, the tensor table, and the metadata that autograd and references attach.

    serialize:    value --encode--> pickle, tensors --autograd.on_send--> metadata --> Message
    deserialize:  Message --> tensors, on their devices --autograd.on_receive--> tensors with history --decode--> value

Autograd and references register themselves; without them a call has no metadata of theirs.
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
from .messages import BARE_CALL, BARE_REPLY, Message, Parsed, compose, is_reply, metadata_of, parse
from .metadata import EMPTY, Context, Created, Metadata, pack, unpack


class Autograd(Protocol):
    """Hooks of distributed autograd. Called for every message while a context may be open."""

    @property
    def has_current(self) -> bool:
        """True if this thread is in a context."""

    def on_send(self, to: int, tensors: Sequence[torch.Tensor]) -> Context | None:
        """Return the metadata to send; None outside of a context."""

    def on_receive(self, sender: int, header: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors with their gradient history."""

    def entered(self, header: Context) -> AbstractContextManager[object]:
        """Enter the context of a message on this thread."""

    def unsent(self, header: Context) -> None:
        """Undo `on_send` for a message that was not sent."""


class References(Protocol):
    """Hooks of references, for the forks in a message."""

    def receiving(self, forks: Sequence[Fork]) -> AbstractContextManager[None]:
        """Context of unpickling."""

    def unsent(self, forks: Sequence[Fork]) -> None:
        """Release the forks of a message that was not sent."""


class Deserialized(NamedTuple):
    """A deserialized message: its value and metadata."""

    value: Any
    autograd: Context | None = None
    remote: Created | None = None
    has_references: bool = False
    window: tuple[int, int] | None = None  # of a stream


class Serializer:
    """See the module.

    Args:
        allowed: allow-list for deserialization; None for no restriction.
        name_of: returns the name of a worker by its id.

    Attributes:
        autograd: hooks, set while distributed autograd is in use.
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
        """True if this thread is in a context of distributed autograd."""
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
        """Serialize a call, given its name, or a reply for worker `to`. Raises the error of pickle.

        `window`: for a call that is a stream.
        """
        forks: list[Fork] = []
        keep_alive: list[Any] = []
        lender = None
        try:
            if call is None:
                data, tensors, buffers = pickling.encode(value, to, forks)
            else:
                data, tensors, buffers = pickling.encode_call(value, to, forks, keep_alive)
            header = None if self.autograd is None else self.autograd.on_send(to, tensors)
            devices = self._target_devices(tensors, to, is_call=call is not None) if tensors else None
            if tensors and self._lending is not None:
                targets = None if call is None else devices or ["cpu"] * len(tensors)
                lender = self._lending.lender(tensors, to, targets)
            extra = b""
            if forks or header is not None or remote is not None or devices is not None or window is not None:
                extra = pack(Metadata(header, remote, forks, devices, window))
            message = compose(extra, tensors, data, buffers, call, lender)
            if keep_alive:
                message = message._replace(keep_alive=tuple(keep_alive))
            if forks or remote is not None:
                fork_ids = [(fork.rref_id, fork.fork_id) for fork in forks]
                message = message._replace(fork_ids=(*fork_ids, *([] if remote is None else [remote])))
            return message
        except BaseException:
            if lender is not None:
                lender.roll_back()
            if forks and self._references is not None:
                self._references.unsent(forks)
            raise

    def _target_devices(self, tensors: Sequence[torch.Tensor], to: int, *, is_call: bool) -> list[str] | None:
        """Return the devices of the tensors: on the callee for a call, here for a reply. None: all on the CPU."""
        if is_call and self._devices.maps:
            name = self._name_of(to)
            return [str(self._devices.there(name, tensor.device)) for tensor in tensors]
        for tensor in tensors:
            if not tensor.is_cpu:
                return [str(tensor.device) for tensor in tensors]
        return None

    def _parse_with_loans(self, message: Message, sender: int) -> tuple[Metadata, Parsed]:
        """Parse a message with loans. Its tensors are copies."""
        assert self._lending is not None and message.received_loans is not None, "created by lending"
        metadata = unpack(metadata_of(message))
        device_of = self._device_chooser(metadata.devices, message, sender)
        with self._lending.borrowing(
            message.received_loans, WorkerInfo(self._name_of(sender), sender), device_of
        ) as borrow:
            parts = parse(message, borrow)
        return metadata, parts._replace(tensors=self._move_tensors(parts.tensors, metadata.devices, message, sender))

    def _move_tensors(
        self, tensors: list[Any], devices: Sequence[str] | None, message: Message, sender: int
    ) -> list[Any]:
        device_of = self._device_chooser(devices, message, sender)
        return [_move_to(tensor, device_of(number)) for number, tensor in enumerate(tensors)]

    def _device_chooser(
        self, devices: Sequence[str] | None, message: Message, sender: int
    ) -> Callable[[int], torch.device]:
        """Return a function from the number of a tensor in a message to its device."""
        name = self._name_of(sender) if is_reply(message) else None

        def device_of(number: int) -> torch.device:
            if devices is not None and number >= len(devices):
                raise WireError(f"a message has more tensors than the {len(devices)} devices in its metadata.")
            device = torch.device("cpu" if devices is None else devices[number])
            return device if name is None else self._devices.here(name, device)

        return device_of

    def deserialize(self, message: Message, sender: int, link: Link | None = None) -> Deserialized:
        """Deserialize a message of worker `sender`, received over `link`. Unpickling may run user code."""
        kind = message.head[0]
        if kind == BARE_REPLY:  # fast path for the two most common kinds
            return Deserialized(pickling.decode(memoryview(message.head)[1:], [], message.buffers, self.allowed))
        if kind == BARE_CALL:
            return Deserialized(pickling.decode_call(memoryview(message.head)[1:], [], message.buffers, self.allowed))
        if message.received_loans is None:
            extra, tensors, data, buffers = parse(message)
            header, remote, forks, devices, window = unpack(extra) if extra else EMPTY
            if tensors and (devices is not None or self._devices.maps):
                tensors = self._move_tensors(tensors, devices, message, sender)
        else:
            (header, remote, forks, _, window), (_, tensors, data, buffers) = self._parse_with_loans(message, sender)
        if header is not None and self.autograd is not None:
            tensors = self.autograd.on_receive(sender, header, tensors)
        decode = pickling.decode if is_reply(message) else pickling.decode_call
        try:
            if self._references is None or not forks:
                return Deserialized(decode(data, tensors, buffers, self.allowed), header, remote, window=window)
            with self._references.receiving(forks):
                value = decode(data, tensors, buffers, self.allowed)
        except Exception as error:
            if remote is None:
                raise
            # The reference exists already and may have been sent on: its value is this error.
            return Deserialized((partial(_raise, error), (), {}), header, remote, has_references=bool(forks))
        return Deserialized(value, header, remote, has_references=True, window=window)

    def roll_back(self, message: Message, to: int) -> None:
        """Release the contents of a message for worker `to` that was not sent. Not on a reading thread."""
        if message.loans and self._lending is not None:
            self._lending.roll_back(message.loans, to)
        header, _remote, forks, *_ = unpack(metadata_of(message))
        if header is not None and self.autograd is not None:
            self.autograd.unsent(header)
        if forks and self._references is not None:
            self._references.unsent(forks)

    def discard(self, message: Message, link: Link | None) -> None:
        """Release the contents of a received message without deserializing it. Not on a reading thread."""
        forks = unpack(metadata_of(message)).forks
        if forks and self._references is not None:
            with self._references.receiving(forks):
                pass

    def entered(self, header: Context | None) -> AbstractContextManager[object]:
        """Enter the autograd context of a call while its function runs."""
        return nullcontext() if header is None or self.autograd is None else self.autograd.entered(header)


def _raise(error: Exception) -> None:
    raise error


def _move_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move a received tensor to its device."""
    if device == tensor.device:
        return tensor
    result = tensor.detach().to(device)
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(result, requires_grad=tensor.requires_grad)
    return result.requires_grad_(tensor.requires_grad)
