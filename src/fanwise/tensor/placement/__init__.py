"""Where an array lies, by one kind of name on every engine. See `naming` for the names."""

from .naming import device_of as device_of
from .naming import devices as devices
from .naming import to_device as to_device
