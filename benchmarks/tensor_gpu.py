"""Arrays on a GPU in one process: fanwise.tensor beside what the engines offer for the same.

    to numpy, to the GPU, between devices    beside torch's own copies
    to JAX and to torch                      beside DLPack and a copy, which ours makes, where JAX has the GPU
    the wire, there and back                 beside torch.save and torch.load
    a function of 1000 elements              beside torch's

Ours and the peer take turns in each round; the ratio is the median of those of the rounds, each of the medians of its
calls. Without a GPU it says so and measures nothing.

    python benchmarks/tensor_gpu.py [--rounds 5]
    python benchmarks/tensor_gpu.py --device cpu --rounds 2      to see that it works
"""

import argparse
import importlib.util
import io
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs memory too

import torch
import torch.utils.dlpack
from measuring import Beside, finish, machine, say, spread, table

import fanwise.tensor as ft

# Any throughout: arrays of all engines.
Call = Callable[[], Any]

SIZES = {"4 KiB": 1 << 10, "64 MiB": 1 << 24}  # numbers of float32
WARM_UP = 3


@dataclass(slots=True)
class Pair:
    """Ours and a peer's way to the same. `wait`: until what a call has returned is computed."""

    name: str
    peer: str
    ours: Call
    theirs: Call
    calls: int
    wait: Callable[[Any], object]
    us: list[tuple[float, float]] = field(default_factory=list)
    trouble: str = ""
    no_peer: str = ""

    def measure(self, *, ours_first: bool) -> None:
        """One round of both."""
        took = {}
        for is_ours in (ours_first, not ours_first):
            if not (self.trouble or self.no_peer):
                try:
                    took[is_ours] = self._us(self.ours if is_ours else self.theirs)
                except Exception as error:  # whatever either raises: the others are measured
                    why = f"{type(error).__name__}: {error}".splitlines()[0]
                    self.trouble, self.no_peer = (why, "") if is_ours else ("", why)
        if len(took) == 2:
            self.us.append((took[True], took[False]))

    def _us(self, call: Call) -> float:
        samples = []
        for number in range(WARM_UP + self.calls):
            begun = time.perf_counter()
            self.wait(call())
            if number >= WARM_UP:
                samples.append(1e6 * (time.perf_counter() - begun))
        return statistics.median(samples)

    def times(self) -> float | None:
        """How many times as fast as the peer."""
        if self.trouble or self.no_peer or not self.us:
            return None
        return statistics.median(theirs / ours for ours, theirs in self.us)


def through_the_wire(x: torch.Tensor, device: str) -> torch.Tensor:
    header, buffers = ft.to_wire(x)
    y: torch.Tensor = ft.from_wire(header, buffers, device=device)
    return y


def through_a_file(x: torch.Tensor, device: str) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    y: torch.Tensor = torch.load(file, map_location=device)
    return y


def pairs_of(device: str) -> list[Pair]:
    def torch_waits(_: Any) -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    found = []
    for size, number in SIZES.items():
        calls = 200 if number < 1 << 20 else 20
        x, here = torch.rand(number, device=device), torch.rand(number)
        array = here.numpy()
        for name, peer, ours, theirs in (
            ("to numpy", "x.cpu().numpy()", lambda x=x: ft.to_numpy(x), lambda x=x: x.cpu().numpy()),
            (
                "of numpy to the device",
                "torch.from_numpy(a).to(device)",
                lambda a=array: ft.convert(a, "torch", device=device),
                lambda a=array: torch.from_numpy(a).to(device),
            ),
            ("to the device", "x.to(device)", lambda h=here: ft.to_device(h, device), lambda h=here: h.to(device)),
            (
                "the wire, there and back",
                "torch.save, torch.load",
                lambda x=x: through_the_wire(x, device),
                lambda x=x: through_a_file(x, device),
            ),
        ):
            found.append(Pair(f"{size} {name}", peer, ours, theirs, calls, torch_waits))
        found += with_jax(size, x, device, calls, torch_waits)
    small = torch.rand(1000, device=device)
    found.append(
        Pair("add 1000 elements", "torch.add", lambda: ft.add(small, small), lambda: torch.add(small, small), 2000, id)
    )
    return found


def with_jax(size: str, x: torch.Tensor, device: str, calls: int, torch_waits: Callable[[Any], None]) -> list[Pair]:
    """There and back. Where JAX has no GPU, DLPack cannot be compared with."""
    if importlib.util.find_spec("jax") is None:
        return []
    import jax

    jax_waits: Callable[[Any], object] = jax.block_until_ready
    try:
        y = ft.convert(x, "jax")
    except Exception as error:  # a JAX that does not find its way to the GPU: the rest is measured
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return [Pair(f"{size} to JAX", "jax.dlpack", lambda: None, lambda: None, calls, torch_waits, trouble=why)]
    no_peer = "" if ft.device_of(y) == device else f"the arrays of this JAX lie on {ft.device_of(y)}"
    torch_dlpack: Any = torch.utils.dlpack
    return [
        Pair(
            f"{size} to JAX",
            "jax.dlpack.from_dlpack(x).copy()",
            lambda: ft.convert(x, "jax"),
            lambda: jax.dlpack.from_dlpack(x).copy(),
            calls,
            jax_waits,
            no_peer=no_peer,
        ),
        Pair(
            f"{size} of JAX to torch",
            "torch.from_dlpack(y).clone()",
            lambda: ft.convert(y, "torch", device=device),
            lambda: torch_dlpack.from_dlpack(y).clone(),
            calls,
            torch_waits,
            no_peer=no_peer,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="arrays on a GPU, fanwise.tensor beside the engines")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        say("tensor_gpu: no GPU was found here; nothing is measured")
        return
    facts = machine()
    facts["device"] = "cpu" if args.device == "cpu" else torch.cuda.get_device_name(args.device)
    facts["torch"] = torch.__version__
    pairs = pairs_of(args.device)
    for number in range(args.rounds):
        say(f"round {number + 1} of {args.rounds}")
        for pair in pairs:
            pair.measure(ours_first=number % 2 == 0)
    rows = [
        [
            pair.name,
            *(spread(values).shown() for values in zip(*pair.us, strict=True)),
            pair.peer,
            f"{pair.times():.3g}",
        ]
        for pair in pairs
        if pair.us
    ]
    missing = [f"Left out: {pair.name} ({pair.trouble or pair.no_peer})" for pair in pairs if not pair.us]
    shown = table([f"on {args.device}, us", "fanwise.tensor", "peer", "which", "times as fast"], rows)
    beside = [Beside(pair.name, pair.peer, pair.times(), pair.trouble, pair.no_peer) for pair in pairs]
    finish("tensor_gpu", [shown, *missing], {pair.name: pair.us for pair in pairs}, facts=facts, beside=beside)


if __name__ == "__main__":
    main()
