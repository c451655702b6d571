"""The progress of a run in one line.

pace (quiet)   rates, and what is worth a line
line           the line, in a terminal, a log, a notebook or the first of several processes
published      the same for the board, which is another program
"""
