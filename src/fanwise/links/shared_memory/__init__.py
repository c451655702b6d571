"""Big buffers of a link between processes of one host: copied once, into memory that both have mapped.

    segment_table (pure)  who holds which part of which segment
    segments               the memory itself, and the pool that the links of one hub send in
    sharing                what a link says of it to its peer, and what comes back

Knows no call.
"""
