"""Values to messages and back: pickling, the tensor table, and the metadata that autograd and references attach.

    serialize:    value --encode--> pickle, tensors --autograd.on_send--> metadata --> Message
    deserialize:  Message --> tensors, on their devices --autograd.on_receive--> tensors with history --decode--> value

If this worker or its peer has an allow-list, calls and replies are plain instead (`allowed`). Autograd and references
register themselves; without them a call has no metadata of theirs.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...base.errors import NotSendableError, WireError
from .. import allowed as allow_list
from ..allowed import Allowed
from ..devices import CudaIpc, DeviceMaps, open_handle
from ..messages import pickling
from ..messages.ids import Created, Fork
from ..messages.messages import (
    BARE_CALL,
    BARE_REPLY,
    PLAIN_CALL,
    PLAIN_REPLY,
    Message,
    compose,
    is_reply,
    metadata_of,
    parse,
)
from ..messages.metadata import EMPTY, Context, Metadata, pack, unpack

if TYPE_CHECKING:
    from ..autograd.service import Service
    from ..references.references import References


class Deserialized(NamedTuple):
    """A deserialized message: its value and metadata."""

    value: Any
    autograd: Context | None = None
    has_references: bool = False


class Serializer:
    """See the module.

    Args:
        allowed: allow-list of this worker; None if other workers may call everything.
        name_of: returns the name of a worker by its id.

    Attributes:
        autograd: distributed autograd, set while it is in use.
        plain_peers: ids of the workers that have an allow-list.
    """

    def __init__(
        self,
        *,
        references: "References | None" = None,
        cuda_ipc: CudaIpc | None = None,
        allowed: Allowed | None = None,
        devices: DeviceMaps | None = None,
        name_of: Callable[[int], str] = str,
    ) -> None:
        self.autograd: Service | None = None
        self.allowed = allowed
        self.plain_peers: set[int] = set()
        self._references = references
        self._cuda_ipc = cuda_ipc
        self._devices = devices or DeviceMaps({}, ())
        self._name_of = name_of

    def sends_plain_calls(self, to: int) -> bool:
        """Return True if calls on worker `to` are plain, because it or this worker has an allow-list."""
        return self.allowed is not None or to in self.plain_peers

    def check_plain_call(self, to: int, name: str, *, remote: Created | None) -> None:
        """Raise NotSendableError if a call needs more than a plain call has."""
        worker = "this worker" if self.allowed is not None else f"worker {self._name_of(to)}"
        if remote is not None:
            raise NotSendableError(
                f"{worker} has an allow-list, so rpc.remote, actors and streams cannot be used with it: call {name} by "
                f"rpc_sync or rpc_async"
            )
        if self.autograd is not None and self.autograd.has_current:
            raise NotSendableError(
                f"{worker} has an allow-list, so it takes no part in distributed autograd: call {name} outside of "
                f"autograd.context()"
            )

    def serialize(
        self,
        value: Any,
        to: int,
        *,
        call: str | None = None,
        remote: Created | None = None,
    ) -> Message:
        """Serialize a call, given its name, or a reply for worker `to`. Raises the error of pickle."""
        forks: list[Fork] = []
        keep_alive: list[Any] = []
        try:
            if call is None:
                data, tensors, buffers = pickling.encode(value, to, forks)
            else:
                data, tensors, buffers = pickling.encode_call(value, to, forks, keep_alive)
            header = None if self.autograd is None else self.autograd.on_send(to, tensors)
            devices = self._target_devices(tensors, to, is_call=call is not None) if tensors else None
            extra = b""
            if forks or header is not None or remote is not None or devices is not None:
                extra = pack(Metadata(header, remote, forks, devices))
            share = None if devices is None or self._cuda_ipc is None else partial(self._cuda_ipc.share, to)
            message = compose(extra, tensors, data, buffers, call, share)
            return message._replace(keep_alive=tuple(keep_alive)) if keep_alive else message
        except BaseException:
            if forks and self._references is not None:
                self._references.on_unsent(forks)
            raise

    def _target_devices(self, tensors: Sequence[torch.Tensor], to: int, *, is_call: bool) -> list[str] | None:
        """Return the devices of the tensors: on the callee for a call, here for a reply. None: all on the CPU."""
        if is_call and self._devices.maps:
            name = self._name_of(to)
            return [str(self._devices.map_call(name, tensor.device)) for tensor in tensors]
        for tensor in tensors:
            if not tensor.is_cpu:
                return [str(tensor.device) for tensor in tensors]
        return None

    def _move_tensors(
        self, tensors: list[Any], devices: Sequence[str] | None, message: Message, sender: int
    ) -> list[Any]:
        """Move the tensors of a message to their devices."""
        if devices is not None and len(devices) < len(tensors):
            raise WireError(f"a message has more tensors than the {len(devices)} devices in its metadata.")
        caller = self._name_of(sender) if is_reply(message) else None
        moved = []
        for tensor, name in zip(tensors, devices or ["cpu"] * len(tensors), strict=False):
            device = torch.device(name)
            moved.append(_move_to(tensor, device if caller is None else self._devices.map_reply(caller, device)))
        return moved

    def deserialize(self, message: Message, sender: int) -> Deserialized:
        """Deserialize a message of worker `sender`. Unpickling may run user code."""
        kind = message.head[0]
        if self.allowed is None:  # fast path for the two most common kinds
            if kind == BARE_REPLY:
                return Deserialized(pickling.decode(memoryview(message.head)[1:], [], message.buffers))
            if kind == BARE_CALL:
                return Deserialized(pickling.decode_call(memoryview(message.head)[1:], [], message.buffers))
        if kind == PLAIN_REPLY:
            return Deserialized(allow_list.decode_reply(memoryview(message.head)[1:], message.buffers))
        if kind == PLAIN_CALL:
            return Deserialized(allow_list.decode_call(memoryview(message.head)[1:], message.buffers, self.allowed))
        if self.allowed is not None:
            raise WireError("received a pickle, which was not read because this worker has an allow-list.")
        extra, tensors, data, buffers = parse(message, open_handle)
        header, _remote, forks, devices = unpack(extra) if extra else EMPTY
        if tensors and (devices is not None or self._devices.maps):
            tensors = self._move_tensors(tensors, devices, message, sender)
        if header is not None and self.autograd is not None:
            tensors = self.autograd.on_receive(sender, header, tensors)
        decode = pickling.decode if is_reply(message) else pickling.decode_call
        with self._references.receiving(forks) if self._references is not None and forks else nullcontext():
            return Deserialized(decode(data, tensors, buffers), header, bool(forks))

    def roll_back(self, message: Message, to: int) -> None:
        """Release the contents of a message for worker `to` that was not sent. Does not block."""
        header, _remote, forks, *_ = unpack(metadata_of(message))
        if header is not None and self.autograd is not None:
            self.autograd.unsent(header)
        if forks and self._references is not None:
            self._references.on_unsent(forks)

    def discard(self, message: Message) -> None:
        """Release the contents of a received message without deserializing it. Not on a reading thread."""
        if self.allowed is not None:
            return
        forks = unpack(metadata_of(message)).forks
        if forks and self._references is not None:
            with self._references.receiving(forks):
                pass
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's
            with suppress(RuntimeError):
                parse(message, open_handle)  # so that the sender's memory is released

    def entered(self, header: Context | None) -> AbstractContextManager[object]:
        """Enter the autograd context of a call while its function runs."""
        return nullcontext() if header is None or self.autograd is None else self.autograd.entered(header)


def _move_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move a received tensor to its device."""
    if device == tensor.device:
        return tensor
    result = tensor.detach().to(device)
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(result, requires_grad=tensor.requires_grad)
    return result.requires_grad_(tensor.requires_grad)
