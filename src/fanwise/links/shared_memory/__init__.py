"""Big buffers of a link between processes of one host: copied once, into memory that both have mapped.

    segment_table (pure)   the state of the segments of a link
    segments               the memory, and the budget of all links of a hub
    sharing                the frames of a link about it

Calls are unknown here.
"""
