"""The progress of a run in one line.

line           counts samples and time, and shows the line
published      writes the same for the board, which is another program
"""
