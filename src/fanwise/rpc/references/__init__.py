"""Remote references: values that stay on their owner, and the count of their holders.

rref            the class for users; proxy: calls of methods on the owner
references      the references of this worker, for the rest of rpc
table           reference counts, a pure state machine; orders, delivery: messages between tables. Pure
keeper          executes the decisions of the table
travel          references in messages
"""
