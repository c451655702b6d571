"""Who is in the group: joining, leaving, the coordinator, and when a worker counts as dead.

    members (quiet)           what is said about members, and what one of them knows
    coordinator (quiet)       what the coordinator decides; quorum (quiet): which side of a cut may go on
    failure_detector (quiet)  when a member without a link counts as lost
    coordinator_server        carries that out, in one process of the group
    group                     this worker's membership; seeking, peer_probing: finding the coordinator, or becoming it
    coordinator_watch         whether the coordinator still answers
    leaving                   the end, alone or of all
    worker_events             what programs hear of all this, on threads of their own

Knows no call and no reference: they ask `group`.
"""
