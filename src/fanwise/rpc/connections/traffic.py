"""What has gone over the links of this worker, by the name of the other one.

A link counts for itself (`links.counts`). What has ended is added up for each worker, so the numbers of a worker never
go down when its link is cut, or when it comes back as another life. Of workers that have no link any more the newest
GONE_MAX are remembered. Knows no call and no member.
"""

import threading
from collections import defaultdict
from functools import partial

from ...links.counts import LinkCounts
from ...links.link import Link
from ...links.peers import Ending

GONE_MAX = 1024


class Traffic:
    """See the module. By any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: defaultdict[str, list[Link]] = defaultdict(list)
        self._ended: dict[str, LinkCounts] = {}

    def keep(self, worker: str, link: Link) -> None:
        """`link` leads to `worker`."""
        with self._lock:
            self._links[worker].append(link)
        link.on_ended(partial(self._link_ended, worker))

    def refused(self, worker: str, why: str) -> None:
        """Something was not done for, or with, `worker`, where no link can count it."""
        with self._lock:
            self._add(worker, LinkCounts(refused={why: 1}))

    def by_worker(self) -> dict[str, tuple[LinkCounts, list[Link]]]:
        """Of all that there ever was something to tell of, by name: what went so far, and the links that are open."""
        with self._lock:
            ended, links = dict(self._ended), {worker: links.copy() for worker, links in self._links.items()}
        found: dict[str, tuple[LinkCounts, list[Link]]] = {}
        for worker in sorted({*ended, *links}):
            its = links.get(worker, [])
            found[worker] = sum((link.counts() for link in its), ended.get(worker, LinkCounts())), its
        return found

    def _link_ended(self, worker: str, link: Link, _ending: Ending) -> None:
        with self._lock:
            links = self._links[worker]
            links.remove(link)
            if not links:
                del self._links[worker]
            self._add(worker, link.counts())

    def _add(self, worker: str, counts: LinkCounts) -> None:
        self._ended[worker] = self._ended.pop(worker, LinkCounts()) + counts  # at the end: the newest
        if len(self._ended) > GONE_MAX:
            oldest = next((gone for gone in self._ended if gone not in self._links), None)
            if oldest is not None:
                del self._ended[oldest]
