"""A pool over the nodes of a Ray cluster. Ray places and restarts host processes; jobs use our own links.

    placement     assigns jobs to hosts
    engine        the pool's side: an engine as in `contract`
    host          the node's side: a local engine behind a link
    with_ray      the driver process, the only file that imports Ray
    starting      starts that process, connects to a cluster and waits for hosts

Imported when a pool with `ray=` is first used. See docs/design/cluster.md.
"""
