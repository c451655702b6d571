"""Tree models and cross-validation of scikit-learn, which is imported on first use."""

from typing import Any

from ...base.extras import check_installed, is_installed


def has_sklearn() -> bool:
    """Return True if scikit-learn is installed."""
    return is_installed("sklearn")


def check_sklearn(subject: str) -> None:
    """Raise NotInstalled if scikit-learn is missing. `subject`: start of the message, e.g. "ForestSearcher needs"."""
    check_installed(subject, "sklearn", extra="forest")


def extra_tree(seed: int) -> Any:
    """Return an extremely randomized tree that considers all features at each split."""
    from sklearn.tree import ExtraTreeRegressor

    return ExtraTreeRegressor(max_features=1.0, random_state=seed)


def random_forest(num_trees: int, *, min_samples_leaf: int) -> Any:
    """Return a random forest with a fixed seed."""
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(num_trees, min_samples_leaf=min_samples_leaf, random_state=0)


def k_fold(num_folds: int, rows: Any) -> Any:
    """Iterate over (train, test) indices of shuffled folds with a fixed seed."""
    from sklearn.model_selection import KFold

    return KFold(num_folds, shuffle=True, random_state=0).split(rows)
