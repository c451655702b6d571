"""A pool over the nodes of a cluster: Ray places and restarts; jobs, reports and results go over our links.

    your program                            a process that speaks with Ray      each node
      Pool -> ClusterEngine                   with_ray: one actor a bundle  -->   host actor: Host
                  placement (quiet)           tells what becomes of them            its own LocalEngine, warm workers
                  '----------------------- link over TLS ----------------------------'

    placement (quiet)     which host gets which job
    free_hosts (quiet)    the hosts by what is free on them
    versions (quiet)      whether a node runs the same Python, fanwise and torch as your program
    hosts (quiet)         what a host says of itself when it joins
    engine, jobs          the pool's side: an engine as `contract` says
    host, surroundings    the node's side: the same local engine behind a link; the folder and `sys.path` of its jobs
    with_ray              the only file that imports Ray, in a process of its own
    ray_process           that process seen from the pool
    starting              from an address to hosts that have joined

    settings (quiet)      what a user may say of all this

All but the settings is imported when a pool with `ray=` is first used. See docs/design/cluster.md.
"""
