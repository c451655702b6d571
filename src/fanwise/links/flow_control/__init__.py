"""Flow control: how many calls of a peer may be on their way, or wait until they are started.

    credits (pure)  decides what may be sent, and how much is granted
    flow            both directions of one link: frames about credit, and the budget of the process

Replies and control messages cost nothing. The link sends the frames, and blocks callers until they have credit.
"""
