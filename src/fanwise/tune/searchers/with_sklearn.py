"""What searchers and importances take of scikit-learn: its trees. Loads it when the first of them is made."""

from typing import Any

from ...base.extras import check_installed, is_installed


def has_forests() -> bool:
    """Whether scikit-learn is there."""
    return is_installed("sklearn")


def check_forests(what: str) -> None:
    """Raise NotInstalled where scikit-learn is missing. `what`: needs it, with the verb."""
    check_installed(what, "sklearn", extra="forest")


def extra_tree(seed: int) -> Any:  # Any: scikit-learn has no types
    """One extremely randomised tree that looks at all features in each split."""
    from sklearn.tree import ExtraTreeRegressor

    return ExtraTreeRegressor(max_features=1.0, random_state=seed)


def random_forest(num_trees: int, *, least_rows: int) -> Any:  # Any: as above
    """A forest that is always the same; `least_rows`: in each leaf."""
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(num_trees, min_samples_leaf=least_rows, random_state=0)


def folds(num_folds: int, rows: Any) -> Any:  # Any: arrays
    """Indices of the rest and of what is held back, `num_folds` times, always the same."""
    from sklearn.model_selection import KFold

    return KFold(num_folds, shuffle=True, random_state=0).split(rows)
