"""What the processes of a run tell each other at a sum: which nodes of the tree each has, and all but the gradients."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..replica.gradients import Partial, add
from ..shards import Node, total
from ..teams.node_info import NodeInfo, hear, tell
from ..teams.team import check_done

if TYPE_CHECKING:
    from .team import SharedMemoryTeam


class Found(NamedTuple):
    """A node, and where its gradients are: the rank that has it, and which of its nodes it is."""

    rank: int
    number: int
    node: NodeInfo


class Told(NamedTuple):
    """What all have told.

    `done`: the sum, without gradients. `reached`: parameters with a gradient in at least one node. `own`: what each
    process said of itself, by place. `admits`: somebody waits to be taken in, and all know.
    """

    found: list[Found]
    done: Partial
    reached: list[bool]
    own: list[Any]  # Any: as given
    admits: bool


def told(
    member: "SharedMemoryTeam", what: str, nodes: Sequence[Node[Partial]], shards: int, own: Any
) -> Told:  # Any: pickled
    """Tell, and hear all others. Blocks until all have told. What each has written before can be read after.

    Raises:
        ValueError: the losses count nothing; shards do not agree on a buffer.
    """
    said = member.gather(what, (member.joining, own, tell(nodes)))
    found = [
        Found(rank, number, node)
        for rank, (_, _, theirs) in zip(member.members, said, strict=True)
        for number, node in enumerate(hear(theirs))
    ]
    done = total([each.node.node() for each in found], shards, add)
    check_done(done)
    flags = [each.node.reached for each in found if each.node.reached]
    reached = [any(each) for each in zip(*flags, strict=True)]
    return Told(found, done, reached, [its for _, its, _ in said], said[0][0] > 0)
