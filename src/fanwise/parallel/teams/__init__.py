"""The processes of a run as a step sees them.

team        what all exchange, and the team of one process
node_info   what a process tells the others about its nodes of the tree
layout      where the parameters of a step lie in flat memory, and whose slices they are
"""
