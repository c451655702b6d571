"""`run.step`: from a batch to updated parameters.

stepping      a step that the library makes, from a batch to updated parameters
manual        a step whose loop over the shards is the program's own
open_loop     whether such a loop is under way
execution     one batch over all shards and processes, whoever writes the loop
loss_scale    float16: losses are scaled, and steps with overflows left out
"""
