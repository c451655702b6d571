"""Public tools for tests of fanwise and of what is built on it. Loads no pytest.

    within(5.0, lambda: pool.idle == 2, "both workers are idle")    wait for a fact, never for a time

`fanwise.testing.hygiene` is a pytest plugin: after each test nothing may be left. Load it in your `conftest.py`
with `pytest_plugins = ["fanwise.testing.hygiene"]`.
"""

from .leaks import Leak as Leak
from .leaks import Snapshot as Snapshot
from .within import within as within
