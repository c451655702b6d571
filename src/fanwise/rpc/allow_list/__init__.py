"""What calls of others may name and do, where a worker has an allow-list.

    allowing       the list: what it lets through
    reading        a reader of pickles that makes and calls only that
    hints (quiet)  what to do about a name that was refused

Knows no link and no call.
"""
