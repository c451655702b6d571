"""The links of this worker to its peers, opened on first use.

connections  the links: dial, accept; a link that ends is the loss of its worker
routes       the link for calls to each worker, and the queue of calls that wait for it
traffic      counters by peer
"""
