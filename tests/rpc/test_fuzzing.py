"""Mutated bytes at a member's socket, before and after the handshake: it keeps working, and runs none of them.

Each connection sends some valid messages of a member, and then messages with changed bytes, lengths, kinds or tables.
For a member with an allow-list the pickles are changed too, because it must not read them. For a member without one a
pickle may run code, as SECURITY.md says, so it is empty and only the bytes around it are changed.
"""

import contextlib
import os
import pickle
import random
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rpc_workers import Worker, Workers

import fanwise.rpc as rpc
from fanwise.links import frames
from fanwise.links.security.handshake import NONCE_SIZE, DialerHandshake
from fanwise.rendezvous.unix import host_key
from fanwise.rpc import agent
from fanwise.rpc.allowed import encode_call
from fanwise.rpc.membership.coordinator import SendUpdate
from fanwise.rpc.membership.members import Departure, Hello, Member, Update
from fanwise.rpc.messages.ids import Fork, GlobalId, WorkerKey
from fanwise.rpc.messages.messages import addressed, compose, dumps
from fanwise.rpc.messages.metadata import Address, Metadata, pack
from fanwise.rpc.references.protocol import Batch, ChildAccepted, FlushRequest, ForkRequest, Release
from fanwise.tensor.wire.header import ENGINE_CODES, MAGIC, VERSION
from fanwise.testing import within

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

MEMORY_MAX_BYTES = 64 << 20
SOAK_S = 600.0


def total(tensor: torch.Tensor) -> float:
    return float(tensor.to_dense().sum())


# -- at the member -----------------------------------------------------------------------------------------------------


def where() -> tuple[str, int, int]:
    """Return the path of the socket, the incarnation and the process ID of this worker."""
    me = agent.current().group.me
    return me.address, me.incarnation, os.getpid()


def works() -> float:
    """An honest call of the function that is allowed, to this worker itself."""
    return float(rpc.rpc_sync(rpc.get_worker_info(), total, args=(torch.ones(3, 2).t(),)))


def engines_loaded() -> list[str]:
    """Modules that forged bytes could load, each of which would exceed the memory limit of the test."""
    return [name for name in ("jax", "tensorflow") if name in sys.modules]


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- messages ------------------------------------------------------------------------------------------------------


def words(chance: random.Random, incarnation: int, *, with_pickles: bool, canary: Path) -> list[tuple[int, Any]]:
    """Valid words of a member, with their kinds of frames."""
    k, g = WorkerKey(7, 70), GlobalId(7, 70, chance.randrange(4))
    other = GlobalId(0, incarnation, chance.randrange(4))
    fork = Fork(other, g, WorkerKey(0, incarnation), k)
    batch = Batch(
        k, WorkerKey(0, incarnation), (ForkRequest(other, g), Release(other, g), ChildAccepted(g), FlushRequest(k, ()))
    )
    member = Member("evil", 7, 70, "/nowhere", "nohost/1", 1)
    plain = [
        ("hello", (member, incarnation, 1 << 30, 1 << 40)),
        ("join", (1, "0", Hello(member, 2))),
        ("refs", (batch,)),
        ("autograd.begin", (5, (7, 1), ((1, 2), (3,)), False)),
        ("autograd.gradients", (5, (7, 1), 3, (torch.ones(3), None))),
        ("autograd.zeros", (5, (7, 1), (1, 2))),
        ("autograd.release", (5,)),
        ("devices", ()),
        ("devices.uuids", ()),
        ("pending", ()),
        ("action", (SendUpdate(incarnation, Update(9, (member,))),)),
        ("action", (SendUpdate(incarnation, Update(11, (Departure(1, "lost"), member))),)),
    ]
    tensors = [
        torch.ones(5, 3).t(),
        torch.eye(3, 5).to_sparse(),
        torch.ones(3),
        torch.zeros(3000),
        torch.eye(3).to_sparse_csr(),
    ]
    chance.shuffle(tensors)
    tensors = tensors[: chance.randrange(5)]
    metadata = Metadata(
        (chance.randrange(4), 9) if chance.random() < 0.3 else None,
        (g, g) if chance.random() < 0.3 else None,
        [fork] * chance.randrange(2),
        ["cpu"] * len(tensors) if chance.random() < 0.3 else None,
    )
    extra = pack(metadata) if metadata != Metadata() else b""
    data = chance.choice(pickles(canary)) if with_pickles else b"N."
    what = chance.choice(["f", None])
    message = compose(extra, tensors, data, [memoryview(bytes(5000))] * chance.randrange(2), what)
    if chance.random() < 0.3:
        call = (total, (torch.ones(3), [1, {"a": b"b"}]), {"tensor": 2})
        message = encode_call(call, "f")
    elif what is not None and chance.random() < 0.3:
        actor = GlobalId(0, incarnation, -chance.randrange(4))
        message = addressed(message, Address(actor, chance.choice([0.0, 0.01, 60.0]), chance.choice([0, 0, 1, 3])))
    kinds = [frames.REQUEST, frames.NOTICE, frames.CALL, frames.CALL, frames.REPLY, frames.CANCEL]
    return [
        (chance.choice(kinds), chance.choice([*plain, *[(message, ())] * 6])) for _ in range(chance.randrange(1, 5))
    ]


def pickles(canary: Path) -> list[bytes]:
    """Calls that are harmless, and such that leave a mark."""
    evil = b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93" + _text(str(canary)) + b"\x85R."
    return [
        pickle.dumps((total, (3,), {}), protocol=5),
        pickle.dumps((f"{__name__}:total", ({"a": [1, (2, 3)]},), {"b": {1, 2}}), protocol=5),
        evil,
        b"\x80\x04" + evil[2:-1] + b")}\x87.",
        pickle.dumps((os.mkdir, (str(canary),), {})),
    ]


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def changed(chance: random.Random, data: bytes, until: int) -> bytes:
    """Some bytes of the first `until` are others, or are not there, or twice there."""
    found = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(max(1, min(until, len(found))))
        match chance.randrange(4):
            case 0 if at < len(found):
                found[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
            case 1 if at < len(found):
                found[at] ^= 1 << chance.randrange(8)
            case 2:
                del found[at : at + chance.randrange(1, 9)]
            case _:
                found[at:at] = found[at : at + chance.randrange(1, 9)] or b"\xff"
    return bytes(found)


def stream_of(chance: random.Random, messages_sent: Sequence[tuple[int, Any]], *, with_pickles: bool) -> bytes:
    """The frames of some words, most of them changed."""
    parts = []
    for kind, word in messages_sent:
        head, buffers = dumps(word)
        head = bytes(head)
        if chance.random() < 0.2:  # arrays of another engine
            begin, engine = bytes((MAGIC, VERSION)), chance.choice(["numpy", "jax", "tensorflow"])
            head = head.replace(begin + bytes([ENGINE_CODES["torch"]]), begin + bytes([ENGINE_CODES[engine]]))
        if chance.random() < 0.5:
            head = changed(chance, head, len(head) if with_pickles else max(1, len(head) - 2))
        frame = b"".join(map(bytes, frames.encode(kind, chance.randrange(1, 100), head, buffers)))
        if chance.random() < 0.3:  # a header that lies
            header = list(frames.HEADER.unpack_from(frame))
            header[chance.randrange(7)] = chance.choice([0, 1, 2, 13, 200, chance.randrange(1 << 7)])
            if chance.random() < 0.5:
                header[chance.choice([3, 5, 6])] = chance.choice([1 << 31, (1 << 32) - 1])
            if chance.random() < 0.5:
                header[5] = header[6] = chance.choice([60 << 30, 1 << 40, 1 << 63])
            frame = frames.HEADER.pack(*header) + frame[frames.HEADER.size :]
        parts.append(changed(chance, frame, frames.HEADER.size) if chance.random() < 0.1 else frame)
    stream = b"".join(parts)
    return stream[: chance.randrange(len(stream))] if chance.random() < 0.2 else stream


class Attack:
    """Strangers and hostile members at the sockets of one member."""

    def __init__(self, worker: Worker, seed: int, *, with_pickles: bool, canary: Path) -> None:
        self.chance = random.Random(seed)
        self.worker = worker
        self.with_pickles = with_pickles
        self.canary = canary
        assert worker.do(works) == 6.0
        path, self.incarnation, self.pid = worker.do(where)
        self.path = Path(path)
        self.key = host_key(self.path.parent)
        self.count = 0
        for _ in range(20):  # the first ones may affect the others
            self.once()
        self.base_bytes = resident_bytes(self.pid)
        self.peak_bytes = self.base_bytes

    def once(self) -> None:
        """One connection."""
        self.count += 1
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20.0)
            connection.connect(os.fspath(self.path))
            with contextlib.suppress(OSError):
                if self.chance.random() < 0.15:
                    connection.sendall(self._as_a_stranger())
                else:
                    self._as_a_member(connection)
        now_bytes = resident_bytes(self.pid)
        if now_bytes > getattr(self, "peak_bytes", now_bytes) + (8 << 20):
            print(f"connection {self.count} to {self.pid}: {(now_bytes - self.peak_bytes) >> 20} MiB more at once")
        self.peak_bytes = max(getattr(self, "peak_bytes", 0), now_bytes)

    def _as_a_stranger(self) -> bytes:
        chance = self.chance
        nonce = chance.randbytes(NONCE_SIZE)
        valid = DialerHandshake(chance.randbytes(32), nonce).receive(b"fanwise1" + chance.randbytes(NONCE_SIZE))
        return chance.choice([changed(chance, valid, 40), valid, chance.randbytes(chance.randrange(200))]) + b"x" * 99

    def _as_a_member(self, connection: socket.socket) -> None:
        chance = self.chance
        handshake = DialerHandshake(self.key, chance.randbytes(NONCE_SIZE))
        while not handshake.done:
            data = connection.recv(handshake.wants)
            if not data:
                return
            connection.sendall(handshake.receive(data))
        member = Member("evil", 7, chance.randrange(1 << 40), "/x", "nohost/1", 1)
        hello, _ = dumps(("hello", (member, self.incarnation, 1 << 30, 1 << 40)))
        if chance.random() < 0.9:
            connection.sendall(b"".join(frames.encode(frames.REQUEST, 1, bytes(hello))))
        messages_sent = words(chance, self.incarnation, with_pickles=self.with_pickles, canary=self.canary)
        connection.sendall(stream_of(chance, messages_sent, with_pickles=self.with_pickles))
        if chance.random() < 0.3:
            connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.005)
        with contextlib.suppress(TimeoutError):
            while connection.recv(65536):
                pass

    def check(self) -> None:
        """Check that the member answers, and has allocated, run and loaded nothing."""
        assert self.worker.do(works) == 6.0
        grown = self.peak_bytes - self.base_bytes
        assert grown < MEMORY_MAX_BYTES, f"{grown >> 20} MiB more after {self.count} connections"
        assert not self.canary.exists()
        assert self.worker.do(engines_loaded) == []


def attacks_on(real_workers: Workers, folder: Path, seed: int) -> list[Attack]:
    """On a member with an allow-list, and on one without."""
    strict, open_one = real_workers.begin(0, 2, allow=[total]), real_workers.begin(1, 2)
    strict.result(), open_one.result()
    return [
        Attack(strict, seed, with_pickles=True, canary=folder / "strict"),
        Attack(open_one, seed, with_pickles=False, canary=folder / "open"),
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_member_outlives_what_is_sent_to_its_socket(real_workers: Workers, tmp_path: Path, seed: int) -> None:
    for attack in attacks_on(real_workers, tmp_path, seed):
        for _ in range(60):
            attack.once()
        attack.check()


def test_the_marks_would_be_seen(real_workers: Workers, tmp_path: Path) -> None:
    """The same pickles do run where nothing is refused."""
    (one,) = real_workers.group(1)
    attack = Attack(one, 3, with_pickles=True, canary=tmp_path / "mark")
    for _ in range(2000):
        attack.once()
        if attack.canary.exists():
            break
    within(10.0, attack.canary.exists, "a pickle has left its mark")


def test_what_is_announced_takes_no_memory(real_workers: Workers, tmp_path: Path) -> None:
    (one,) = real_workers.group(1)
    attack = Attack(one, 4, with_pickles=False, canary=tmp_path / "mark")
    limit = frames.Limits().buffers
    with contextlib.ExitStack() as stack:
        for sizes in ([1 << 30], [255 << 10] * limit, [0, 1 << 30, 1 << 30]):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(20.0)
            connection.connect(os.fspath(attack.path))
            handshake = DialerHandshake(attack.key, bytes(NONCE_SIZE))
            while not handshake.done:
                connection.sendall(handshake.receive(connection.recv(handshake.wants)))
            total_bytes = 8 * len(sizes) + 10 + sum(sizes)
            header = frames.HEADER.pack(frames.MAGIC, frames.REQUEST, 0, len(sizes), 1, 10, total_bytes)
            connection.sendall(header + struct.pack(f"<{len(sizes)}Q", *sizes) + bytes(10) + b"some")
        assert one.do(works) == 6.0
        assert resident_bytes(attack.pid) - attack.base_bytes < MEMORY_MAX_BYTES


@pytest.mark.soak
def test_a_member_outlives_ten_minutes_of_it(real_workers: Workers, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    attacks = attacks_on(real_workers, tmp_path, seed)
    until_s = time.monotonic() + SOAK_S
    while time.monotonic() < until_s:
        for attack in attacks:
            for _ in range(100):
                attack.once()
            attack.check()
    statistics = [(attack.count, (attack.peak_bytes - attack.base_bytes) >> 20) for attack in attacks]
    print(f"(connections, MiB more) {statistics}")
