"""Writes results as CSV, JSON, Parquet or SQLite, atomically."""

import errno
import json
import math
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import NotInstalled

if TYPE_CHECKING:
    import pandas as pd

_ENDINGS = (".csv", ".json", ".parquet", ".sqlite")


def write_results(results: "pd.DataFrame", trials: "pd.DataFrame", path: str | os.PathLike[str]) -> None:
    """Write the results to a file in the format of its suffix. An existing file is replaced atomically.

    Missing values are `nan` in CSV and null in JSON, which is a list with one object per row. SQLite contains both
    tables, with lists and dicts as JSON.

    Raises:
        ValueError: the path has another suffix.
        NotInstalled: parquet needs pyarrow.
        OSError: the folder is missing or not writable, or the disk is full.
    """
    target = Path(os.path.abspath(path))  # "." has no name
    ending = target.suffix.lower()
    if ending not in _ENDINGS and not target.is_dir():
        raise ValueError(f"results are written as {', '.join(_ENDINGS)}, by the file's ending; got {target.name!r}")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        with partial.open("wb") as file:
            if ending == ".csv":
                results.to_csv(file, index=False, na_rep="nan")
            elif ending == ".json":
                file.write(_json(results))
            elif ending == ".parquet":
                file.write(_parquet(results))
        if ending == ".sqlite":
            _write_sqlite({"results": results, "trials": trials}, partial)
        os.replace(partial, target)
    except OSError as error:
        raise OSError(error.errno, _reason(target, error), str(target)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _json(frame: "pd.DataFrame") -> bytes:
    """Encode with all digits, unlike the JSON writer of pandas."""
    rows = [{str(name): _plain(value) for name, value in row.items()} for row in frame.to_dict(orient="records")]
    return json.dumps(rows, allow_nan=False, default=str).encode()


def _plain(value: Any) -> Any:  # Any: a cell
    """Convert to JSON types. Missing values, NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _parquet(frame: "pd.DataFrame") -> bytes:
    try:
        import pyarrow  # noqa: F401  # pandas' own message names no extra
    except ImportError as error:
        raise NotInstalled("parquet needs pyarrow. Install it: pip install 'fanwise[parquet]'.") from error
    for name, column in frame.items():
        if column.dtype == object and len(set(map(type, column.dropna()))) > 1:  # a column of parquet has one type
            frame = frame.assign(**{str(name): column.map(str, na_action="ignore")})
    written: bytes = frame.to_parquet(None, index=False, engine="pyarrow")
    return written


def _sqlite_cell(value: Any) -> Any:  # Any: a cell
    return json.dumps(_plain(value)) if isinstance(value, Mapping | list | tuple) else value


def _write_sqlite(frames: Mapping[str, "pd.DataFrame"], file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for name, frame in frames.items():
            plain = frame.map(_sqlite_cell)
            plain.to_sql(name, connection, index=False)
        connection.commit()


def _reason(target: Path, error: OSError) -> str:
    problem = "the results cannot be written"
    if target.is_dir():
        return f"{problem}: that is a folder; name a file in it, such as {target / 'results.csv'}"
    if not target.parent.is_dir():
        return f"{problem}: there is no folder {target.parent}; make it first, or name another"
    return f"{problem}: {error.strerror or error}; name a file in a folder that you may write to"
