"""The links of this worker to the others: made when first needed, mended when cut.

    connections  which links there are; dialling, mending
    routes       over which link calls go, and which calls wait for one
    traffic      what has gone over the links, by worker
    link_loss    what calls are told whose link was lost: the worker is lost, or only the link was cut

Knows no call but as something that can be sent, or fail.
"""
