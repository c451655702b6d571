"""The programs that benchmarks/parallel_gpu.py compares.

tasks    what all of them train on, for how long, and what they answer
book     "Dive into Deep Learning" 13.5 and 13.6, loader included
ours     the same networks with fanwise.run
"""
