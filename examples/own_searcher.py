"""Takes about 2 minutes: a searcher of one's own, local search around the best so far, against random search.

The exercise of "Dive into Deep Learning" 19.3. `LocalSearcher` uses nothing but the public interface: a class with two
methods, which is asked for a configuration and told every loss. Both searches tune a perceptron with dropout on
scikit-learn's digits, each several times with seeds of its own; the picture shows mean and spread of the incumbents.
"""

from collections.abc import Mapping

import torch

from fanwise import Pool, tune
from fanwise.plot import SearchData, incumbent, save_figure
from fanwise.tune import FIFO, Observation, RandomSearcher, Searcher, StoppingCriterion, SuggestContext, Tuner, report
from fanwise.zoo import DropoutMLP, digits, error_rate, train_epoch

REPETITIONS = 3
SECONDS = 20.0  # of each search
N_WORKERS = 2
MAX_EPOCHS = 20
PICTURE = "own-searcher.png"


class LocalSearcher(Searcher):
    """Random at first; later, with probability `probab_local`, the best configuration with one value drawn anew."""

    def __init__(self, probab_local: float, num_init_random: int) -> None:
        self.probab_local, self.num_init_random = probab_local, num_init_random
        self.num_asked = 0
        self.best_loss, self.best_config = float("inf"), dict[str, object]()

    def suggest(self, context: SuggestContext) -> Mapping[str, object]:
        self.num_asked += 1
        is_local = context.random.random() < self.probab_local
        if self.num_asked <= self.num_init_random or not self.best_config or not is_local:
            return context.space.sample(context.random)
        return context.space.resample(
            self.best_config, context.random.choice(list(context.space.domains)), context.random
        )

    def observe(self, observation: Observation) -> None:
        if observation.loss < self.best_loss:
            self.best_loss, self.best_config = observation.loss, dict(observation.config)


def train_mlp(learning_rate: float, batch_size: int, max_epochs: int, **architecture: float) -> None:
    data, model = digits(), DropoutMLP(**architecture)  # type: ignore[arg-type]  # units are int, dropouts float
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    for epoch in range(1, max_epochs + 1):
        train_epoch(model, optimizer, data.train_images, data.train_labels, batch_size)
        report(epoch=epoch, validation_error=error_rate(model, data.test_images, data.test_labels))


space = {
    "num_hiddens_1": tune.lograndint(8, 1024),
    "num_hiddens_2": tune.lograndint(8, 1024),
    "dropout_1": tune.uniform(0, 0.95),
    "dropout_2": tune.uniform(0, 0.95),
    "learning_rate": tune.loguniform(1e-3, 1),
    "batch_size": tune.randint(16, 384),
    "max_epochs": MAX_EPOCHS,
}
values = (256, 256, 0.5, 0.5, 0.1, 256)
first = dict(zip(space, values, strict=False))

searches: list[SearchData] = []
labels: list[str] = []
print(f"{2 * REPETITIONS} searches of {SECONDS:g} s each, then a picture; a line at the end of each:", flush=True)
with Pool(cpus=N_WORKERS) as pool:  # one pool for all searches
    pool.submit(train_mlp, **first, max_epochs=1).result()  # its warm process has all modules now: no search waits
    for seed in range(REPETITIONS):
        for searcher in (RandomSearcher(), LocalSearcher(probab_local=0.8, num_init_random=5)):
            scheduler = FIFO(searcher, metric="validation_error", points_to_evaluate=[first], random_seed=seed)
            stop = StoppingCriterion(max_wallclock_time=SECONDS)
            experiment = Tuner(train_mlp, space, scheduler, stop, n_workers=N_WORKERS, pool=pool, quiet=True).run()
            labels.append(type(searcher).__name__)
            searches.append(experiment.search_data())
            print(f"{labels[-1]}, seed {seed}: {len(experiment.trials)} trials, best {experiment.best}", flush=True)
print(save_figure(incumbent(*searches, labels=labels), PICTURE))
