"""CUDA tensors between processes of one host: handles of `torch.multiprocessing` instead of bytes.

    sender    copies the tensor on its device --> handle of the copy, pickled
    receiver  opens the handle, copies the tensor; torch then releases the sender's copy

Both sides copy: the sender may change its tensor as soon as the call returns, and the receiver's must outlive the
sender. The first large tensor for a worker goes through main memory, and the sender asks which devices that worker
sees: their numbers depend on CUDA_VISIBLE_DEVICES, their UUIDs do not.

A copy whose handle is never opened, because the message was not sent or its receiver died, is kept until the sender
ends.
"""

import logging
import os
import pickle
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.futures import Future
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from ..calling.futures import error_of
from ..messages.ids import WorkerKey

if TYPE_CHECKING:
    from ..agent import Agent
    from ..worker_info import WorkerInfo

_log = logging.getLogger("fanwise.rpc")

# Smaller tensors go through main memory: opening a handle takes half a millisecond, as long as such a copy (H200).
_SHARED_FROM_BYTES = 1 << 20
_DEVICE = 6  # position of the device among the arguments of `rebuild_cuda_tensor`
_UUIDS = "devices.uuids"


class CudaIpc:
    """Shares CUDA tensors of this worker. FANWISE_CUDA_IPC=0 turns it off."""

    def __init__(self, agent: "Agent", environment: Mapping[str, str] = os.environ) -> None:
        self._agent = agent
        self._is_on = environment.get("FANWISE_CUDA_IPC") != "0"
        self._uuids: dict[WorkerKey, tuple[str, ...]] = {}  # empty while a worker was asked
        agent.on(_UUIDS, self._on_uuids_requested)

    def share(self, to: int, tensor: torch.Tensor) -> bytes | None:
        """Return the handle of a copy of a contiguous tensor for worker `to`, or None to send its bytes."""
        if not (self._is_on and tensor.is_cuda and tensor.nbytes >= _SHARED_FROM_BYTES):
            return None
        group = self._agent.group
        member = group.members().get(to)
        if member is None or member.host != group.me.host or member.pid == group.me.pid:
            return None
        uuids = self._uuids.get(member.key)
        if uuids is None:
            self._uuids[member.key] = ()
            self._agent.request(to, _UUIDS).add_done_callback(partial(self._on_uuids, member.key))
            return None
        uuid = _uuid(tensor.device.index)
        if uuid not in uuids:
            return None
        try:
            with torch.cuda.device(tensor.device):
                copy = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
                _, args = reduce_tensor(copy)  # type: ignore[no-untyped-call]  # torch's
        except torch.OutOfMemoryError:
            return None
        except RuntimeError as error:  # such as expandable segments, which cannot be shared
            self._is_on = False
            _log.warning("CUDA tensors are sent through main memory from now on: %s", error)
            return None
        return pickle.dumps((uuid, args, tensor.requires_grad, type(tensor) is torch.nn.Parameter))

    def _on_uuids(self, key: WorkerKey, reply: "Future[Any]") -> None:
        if error_of(reply) is None:
            self._uuids[key] = tuple(reply.value())
        else:
            self._uuids.pop(key, None)  # ask again with the next large tensor

    def _on_uuids_requested(self, sender: "WorkerInfo") -> "Future[Any]":
        """Reply from another thread, because the first use of CUDA blocks."""
        future: Future[Any] = Future()

        def reply() -> None:
            try:
                future.set_result(_visible_uuids())
            except Exception as error:
                future.set_exception(error.with_traceback(None))

        self._agent.answer(reply)
        return future


def open_handle(handle: memoryview) -> torch.Tensor:
    """Return a copy of the tensor, on the same GPU. Raises RuntimeError if its memory cannot be opened."""
    uuid, args, requires_grad, is_parameter = pickle.loads(handle)
    index = _visible_uuids().index(uuid)
    try:
        with torch.cuda.device(index):
            local_args = (*args[:_DEVICE], index, *args[_DEVICE + 1 :])
            copy: torch.Tensor = rebuild_cuda_tensor(*local_args).clone()  # type: ignore[no-untyped-call]  # torch's
    except RuntimeError as error:
        raise RuntimeError(
            f"a tensor in the memory of GPU {uuid} could not be opened: {error}\n"
            f"Start its sender with FANWISE_CUDA_IPC=0, which sends CUDA tensors through main memory."
        ) from error
    return torch.nn.Parameter(copy, requires_grad) if is_parameter else copy.requires_grad_(requires_grad)


def _visible_uuids() -> list[str]:
    return [_uuid(index) for index in range(torch.cuda.device_count())]


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
