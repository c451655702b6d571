"""The wire format of arrays: a header of a few bytes, and the memory unchanged. See docs/design/wire-format.md."""

from .coding import check_loaded as check_loaded
from .coding import from_wire as from_wire
from .coding import is_array as is_array
from .coding import to_wire as to_wire
from .header import WireHeader as WireHeader
from .header import read_header as read_header
from .reducing import array_reducers as array_reducers
from .reducing import class_reducer as class_reducer
from .reducing import kept_view as kept_view
from .reducing import numpy_reducers as numpy_reducers
from .reducing import reduce_tensor as reduce_tensor
