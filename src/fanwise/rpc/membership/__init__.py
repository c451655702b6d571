"""Membership of the group: joining, leaving, the coordinator, the detection of lost members.

members              members, updates of the membership, and the view of one member. Pure
coordinator          decisions of the coordinator, a pure state machine
coordinator_server   executes the decisions, in the process of rank 0
group                the membership of this worker
link_watch           detects processes that do not answer although their links are open
"""
