"""Remote references: values that stay where they are, and who holds them.

    rref            what users have; proxy: its methods, called where the value lives
    references      the references of this worker, as the rest of rpc sees them
    table (quiet)   who holds which value; orders, delivery (quiet): what tables tell each other
    keeper          carries out what the table decides
    travel          references in messages

Knows calls only as what carries a reference, or makes its value.
"""
