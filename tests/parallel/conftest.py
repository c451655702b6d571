"""torch's first optimizer loads its compiler, which leaves a variable in the environment: not the first test's doing."""

import torch._dynamo  # noqa: F401  # for what it leaves
