"""Remote references: values that stay on their owner, and the count of their holders.

rref         the class for users; proxy: calls of methods on the owner
references   the references of this worker, for the rest of rpc
table        which worker holds which value: a pure state machine; protocol: its messages and actions
"""
