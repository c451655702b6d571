"""A run in processes on several hosts that a launcher has started and that hold the shared secret.

team              what all exchange, what is done again when one is lost, how the error of one reaches all
turns (quiet)     views, turns and what is committed; who coordinates, and who does when that one dies
mesh, meeting     the links between all processes, and how they find each other
in_boxes          sums of gradients of small models: each process adds all
by_hosts          sums of others: within each host first, then slices between one process of each
"""
