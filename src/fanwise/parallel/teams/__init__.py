"""The processes of a run as a step sees them.

team        what all exchange, and the team of one process
node_info   what a process tells the others about its nodes of the tree
fast        reduce="fast": one operand a process
"""
