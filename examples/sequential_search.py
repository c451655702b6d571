"""Takes about 20 seconds: random search one trial after another, with a searcher of one's own, and its incumbent.

Section 19.2 of "Dive into Deep Learning" in the terms of fanwise, on the perceptron with dropout of its exercise 1. A
searcher chooses configurations. A scheduler decides which trial runs next and for how long; `FIFO` runs each
to its end, as the book's basic one does. The tuner runs them and keeps the book; the incumbent is the best so far.
"""

from collections.abc import Mapping

import torch

from fanwise.plot import save_figure
from fanwise.tune import FIFO, Observation, Searcher, StoppingCriterion, SuggestContext, Tuner, loguniform, randint
from fanwise.zoo import DropoutMLP, digits, error_rate, train_epoch

TRIALS = 5
EPOCHS = 10
PICTURE = "incumbent.png"


class RandomSearcher(Searcher):
    """The first configuration is given, all later ones are drawn from the space."""

    def __init__(self, initial_config: Mapping[str, object] | None = None) -> None:
        self.initial_config = initial_config

    def suggest(self, context: SuggestContext) -> Mapping[str, object]:
        if self.initial_config is not None:
            config, self.initial_config = self.initial_config, None
            return config
        return context.space.sample(context.random)

    def observe(self, observation: Observation) -> None:
        """Random search learns nothing."""


def train_mlp(learning_rate: float, batch_size: int) -> float:
    data, model = digits(), DropoutMLP(256, 256, 0.5, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    for _ in range(EPOCHS):
        train_epoch(model, optimizer, data.train_images, data.train_labels, batch_size)
    return error_rate(model, data.test_images, data.test_labels)  # what is returned is reported


space = {"learning_rate": loguniform(1e-3, 1), "batch_size": randint(32, 256)}
searcher = RandomSearcher(initial_config={"learning_rate": 0.1, "batch_size": 128})
scheduler = FIFO(searcher, metric="error", mode="min")
print(f"{TRIALS} trials, one after another, then a picture.", flush=True)
tuner = Tuner(train_mlp, space, scheduler, StoppingCriterion(max_num_trials_started=TRIALS), n_workers=1, quiet=True)
experiment = tuner.run()

trials = experiment.trials
trials["incumbent"] = trials["error"].cummin()
trials["cumulative_time"] = trials["worker_time"].cumsum()
columns = ["config_learning_rate", "config_batch_size", "error", "worker_time", "incumbent", "cumulative_time"]
print(trials[columns].to_string())
print("incumbent:", experiment.best)
print(save_figure(experiment.plot(), PICTURE))
