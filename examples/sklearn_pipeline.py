"""Takes about 20 seconds: a scikit-learn pipeline whose steps are searched with cross-validation.

The space has conditions: each classifier brings its own hyperparameters. Each trial uses one core, so nothing is gained
by `n_jobs` of scikit-learn.
"""

from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from fanwise.tune import StoppingCriterion, Tuner, choice, loguniform, parameter, randint

TRIALS = 30
FOLDS = 5
X, y = load_digits(return_X_y=True)


def train(
    n_components: int, classifier: str, C: float = 1.0, gamma: float = 0.01, max_depth: int = 8, n_estimators: int = 50
) -> dict[str, float]:
    model = SVC(C=C, gamma=gamma) if classifier == "svc" else RandomForestClassifier(n_estimators, max_depth=max_depth)
    pipeline = make_pipeline(StandardScaler(), PCA(n_components), model)
    scores = cross_val_score(pipeline, X, y, cv=FOLDS)
    return {"error": 1 - scores.mean(), "spread": scores.std()}


space = {
    "n_components": randint(4, 48),
    "classifier": choice(["svc", "forest"]),
    "C": parameter(loguniform(1e-2, 1e3), when={"classifier": "svc"}),
    "gamma": parameter(loguniform(1e-4, 1), when={"classifier": "svc"}),
    "max_depth": parameter(randint(2, 16), when={"classifier": "forest"}),
    "n_estimators": parameter(randint(20, 200), when={"classifier": "forest"}),
}
stop = StoppingCriterion(max_num_trials_started=TRIALS)
experiment = Tuner(train, space, metric="error", stop=stop, n_workers=2).run()
print(f"best: {experiment.best}")
