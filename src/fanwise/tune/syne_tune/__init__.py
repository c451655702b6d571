"""Syne Tune's names for the searches of fanwise: programs of "Dive into Deep Learning" 19.3 and 19.5 run on it.

    from syne_tune.optimizer.baselines import ASHA  ->  from fanwise.tune.syne_tune.optimizer.baselines import ASHA
    python -m fanwise.tune.syne_tune program.py         runs a program that imports syne_tune, as it is

The modules are called as in Syne Tune 0.3, which the book needs and which its later releases have changed. Each name
is put together from one of `fanwise.tune`; nothing is searched, recorded or printed in another way than there. What a
program asks for beyond that is an ImportError or TypeError that names what fanwise has for it; `missing` has the list.
"""

from .missing import refuses_names
from .report import Reporter as Reporter
from .stopping_criterion import StoppingCriterion as StoppingCriterion
from .tuner import Tuner as Tuner

__getattr__ = refuses_names(__name__)
