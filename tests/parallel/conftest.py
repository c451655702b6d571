"""torch's first optimizer loads its compiler, which leaves a variable in the environment: no test's doing."""

import torch._dynamo  # noqa: F401  # for what it leaves
