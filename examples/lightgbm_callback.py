"""Takes about 20 seconds: gradient boosting of LightGBM with early stopping by ASHA.

A callback of LightGBM reports the validation loss of every iteration. `report` ends the trial if ASHA stops it, so
LightGBM's own `early_stopping` is not needed. With XGBoost, write the same in `after_iteration` of a
`xgboost.callback.TrainingCallback`.
"""

import lightgbm
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from fanwise.tune import ASHA, StoppingCriterion, Tuner, lograndint, loguniform, report, trial_folder, uniform

TRIALS = 40
ITERATIONS = 243
X_train, X_test, y_train, y_test = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)


def report_iteration(env: lightgbm.callback.CallbackEnv) -> None:
    ((_, _, loss, *_),) = env.evaluation_result_list
    report(iteration=env.iteration + 1, loss=loss)


def train(learning_rate: float, num_leaves: int, feature_fraction: float, lambda_l2: float) -> None:
    parameters = {
        "objective": "binary",
        "learning_rate": learning_rate,
        "num_leaves": num_leaves,
        "feature_fraction": feature_fraction,
        "lambda_l2": lambda_l2,
        "num_threads": 1,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(X_train, y_train)
    booster = lightgbm.train(
        parameters, data, ITERATIONS, valid_sets=[data.create_valid(X_test, y_test)], callbacks=[report_iteration]
    )
    booster.save_model(trial_folder() / "model.txt")


space = {
    "learning_rate": loguniform(1e-3, 0.5),
    "num_leaves": lograndint(4, 64),
    "feature_fraction": uniform(0.3, 1),
    "lambda_l2": loguniform(1e-3, 10),
}
scheduler = ASHA("tpe", metric="loss", resource_attr="iteration", max_t=ITERATIONS, grace_period=9)
stop = StoppingCriterion(max_num_trials_started=TRIALS)
experiment = Tuner(train, space, scheduler, stop, n_workers=2).run()
iterations = len(experiment.results)
print(f"best: {experiment.best}")
print(f"{iterations} of {TRIALS * ITERATIONS} iterations were computed")
