"""A run in several processes of one machine.

supervisor, jobs, pools   the process that starts the others and outlives them; their jobs
ranks, member             what runs in each; its team
views (quiet)             who takes part, and what is done when one is lost
board, memory, futex      numbers and boxes in memory that all share
sums, joining, pipes      gradients; the state for who comes later; messages to the supervisor
"""
