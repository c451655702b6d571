"""Arrays of any engine, as the rest of the library sees them: here their wire format.

    from fanwise.tensor import to_wire, from_wire

    header, buffers = to_wire(x)        # a few bytes, and a view of x's memory
    y = from_wire(header, buffers)      # the same engine's array over that memory

Importing this layer loads no engine. An engine is loaded when one of its arrays is sent (then it is loaded
already) or received. The byte layout is written down in docs/design/wire-format.md.
"""

from .buffers import aligned_buffer as aligned_buffer
from .engines import is_array as is_array
from .header import WireHeader as WireHeader
from .header import read_header as read_header
from .wire import from_wire as from_wire
from .wire import to_wire as to_wire
