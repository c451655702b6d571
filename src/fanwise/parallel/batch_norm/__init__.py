"""Batch normalisation with the statistics of the whole global batch.

together        executes the shards of a process in turns, so that they can meet in the middle
relay           whose turn it is; threads and nothing else
own             what each shard has for itself: random state, the attributes of its modules, gradients
meetings        what is brought to a meeting and made of it, over all shards and processes
layers          what replaces F.batch_norm meanwhile
moments         counts, means and squared deviations, and their sum
"""

from .meetings import Gatherer as Gatherer
from .together import BatchNorm as BatchNorm
from .together import TogetherDevice as TogetherDevice
from .together import check_batch_norm as check_batch_norm
from .together import differentiate_together as differentiate_together
