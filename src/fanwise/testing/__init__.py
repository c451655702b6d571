"""Tools for tests of your own searchers and schedulers. Loads no pytest.

check_searcher(MySearcher)                                        the contract of all searchers
check_scheduler(lambda: MyScheduler(metric="loss", max_t=9))      the contract of all schedulers
within(5.0, lambda: pool.idle == 2, "both workers are idle")      wait for a condition
"""

from typing import TYPE_CHECKING

from ..base.lazy_names import lazy_names
from .within import within as within

if TYPE_CHECKING:
    from .scheduler_checks import check_scheduler as check_scheduler
    from .searcher_checks import check_searcher as check_searcher
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
