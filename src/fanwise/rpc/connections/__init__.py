"""The links of this worker to its peers, opened on first use and reopened when lost.

connections  the links: dial, accept, reconnect
routes       the link for calls to each worker, and the queue of calls that wait for it
traffic      counters by peer
link_loss    the errors of calls whose link was lost: the worker is lost, or only the link
"""
