"""Gradients that lie in main memory are added in the shared memory itself.

The sum is read through a private mapping: an optimizer, or clipping, that writes into its gradients gets pages of its
own, and the others see nothing. Such pages are given up after the step.
"""

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from ..teams.node_info import NodeInfo
from .areas import Areas, Piece


class Direct:
    """The carrier of CPU ranks; see two_shot.py."""

    def __init__(self, areas: Areas, rank: int) -> None:
        self._areas = areas
        self._rank = rank
        self._mapping, self._read, self._grads = areas.map_sum()
        self._version = self._read._version
        self.others_node, self.sum = areas.node, areas.sum

    def hand_out(self, number: int, flats: Sequence[Tensor | None], slices: Sequence[Sequence[Piece]]) -> None:
        to: list[Tensor] = []
        of: list[Tensor] = []
        for pieces in slices:
            for piece in pieces:
                flat = flats[piece.param]
                if flat is not None:
                    to.append(self._areas.node(self._rank, number, piece))
                    of.append(flat[piece.start : piece.stop])
        if to:
            torch._foreach_copy_(to, of)

    def wait(self) -> None:
        """What was copied is there."""

    def bring(self, rank: int, nodes: Sequence[NodeInfo], pieces: Sequence[Piece]) -> None:
        """They are read where they are."""

    def publish(self, pieces: Sequence[Piece]) -> None:
        """It was added where all read it."""

    def collect(self, slices: Sequence[Sequence[Piece]]) -> list[Tensor]:
        self.settle()  # also what a step that failed has left
        return self._grads

    def settle(self) -> None:
        if self._read._version != self._version:
            self._mapping.advise(0, self._mapping.size_bytes, mmap.MADV_DONTNEED)
            self._version = self._read._version
