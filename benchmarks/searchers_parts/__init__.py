"""The parts of benchmarks/searchers.py.

tasks     a table of learning curves with what must be known of it: its best value, how long a training takes
methods   what is compared: a line for each
peers     searches of other libraries in processes of their own, as schedulers of ours
runs      one simulated search; the file of all that are done
regret    regret, ranks and their bootstrap intervals
shown     the tables and the figure

two_objectives    the problems of benchmarks/several_objectives.py
"""
