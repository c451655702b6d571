"""Traffic counters of this worker, by the name of the peer.

A link has its own counters (`links.counts`). Those of ended links are summed up per worker, so the counters of a worker
never decrease when its link is lost or it restarts. The newest MAX_FORMER_PEERS workers without a link are kept.
"""

import threading
from collections import defaultdict
from functools import partial

from ...links.counts import LinkCounts
from ...links.link import Link
from ...links.peers import Ending

MAX_FORMER_PEERS = 1024


class Traffic:
    """See the module. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: defaultdict[str, list[Link]] = defaultdict(list)
        self._ended: dict[str, LinkCounts] = {}

    def add_link(self, worker: str, link: Link) -> None:
        """Add a link to `worker`."""
        with self._lock:
            self._links[worker].append(link)
        link.on_ended(partial(self._link_ended, worker))

    def count_refusal(self, worker: str, why: str) -> None:
        """Count a refusal that no link can count."""
        with self._lock:
            self._add(worker, LinkCounts(refused={why: 1}))

    def by_worker(self) -> dict[str, tuple[LinkCounts, list[Link]]]:
        """Return the counters and open links of each worker, by name."""
        with self._lock:
            ended, links = dict(self._ended), {worker: links.copy() for worker, links in self._links.items()}
        result: dict[str, tuple[LinkCounts, list[Link]]] = {}
        for worker in sorted({*ended, *links}):
            open_links = links.get(worker, [])
            result[worker] = sum((link.counts() for link in open_links), ended.get(worker, LinkCounts())), open_links
        return result

    def _link_ended(self, worker: str, link: Link, _ending: Ending) -> None:
        with self._lock:
            links = self._links[worker]
            links.remove(link)
            if not links:
                del self._links[worker]
            self._add(worker, link.counts())

    def _add(self, worker: str, counts: LinkCounts) -> None:
        self._ended[worker] = self._ended.pop(worker, LinkCounts()) + counts  # moved to the end: the newest
        if len(self._ended) > MAX_FORMER_PEERS:
            oldest = next((name for name in self._ended if name not in self._links), None)
            if oldest is not None:
                del self._ended[oldest]
