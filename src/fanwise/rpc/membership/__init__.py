"""Membership of the group: join, leave, coordinator, failure detection.

members              records of members and views. Pure
coordinator          decisions of the coordinator, a pure state machine; quorum: majority of a partition. Pure
failure_detector     decides when a disconnected member counts as lost. Pure
coordinator_server   executes the decisions, in one process of the group
group                the membership of this worker; seeking, peer_probing: find or replace the coordinator
coordinator_watch    detects that the coordinator no longer answers
leaving              leave alone, or shut down the group
worker_events        callbacks of programs, on threads of their own
"""
