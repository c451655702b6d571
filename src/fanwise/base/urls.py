"""Places that are URLs: s3://bucket/folder, gs://, memory:// and whatever else fsspec knows.

    is_url(place)            else it is a path of this machine's file systems
    check_url(url, name=)    fsspec knows such places, and what it needs for them is installed
    filesystem_of(url)       the file system, and the path in it

Loads fsspec when it is first asked for a file system, and next to nothing before.
"""

from typing import Any

from .errors import NotInstalled
from .nearest import nearest


def is_url(place: object) -> bool:
    """Whether this is the text of a URL, and not a path.

    >>> is_url("s3://bucket/run.pt"), is_url("/tmp/run.pt")
    (True, False)
    """
    return isinstance(place, str) and "://" in place


def scheme_of(url: str) -> str:
    """What a URL begins with.

    >>> scheme_of("s3://bucket/run.pt")
    's3'
    """
    return url.partition("://")[0]


def check_url(url: str, *, name: str) -> None:
    """Raises ValueError or NotInstalled where fsspec cannot go there; `name` is the argument that the URL was."""
    try:
        import fsspec
    except ImportError as error:
        raise NotInstalled(f"{name}={url!r} needs fsspec. Install it: pip install fsspec.") from error
    scheme = scheme_of(url)
    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        near = nearest(scheme, [known for known in fsspec.available_protocols() if known != "memory"])
        hint = f"; did you mean {near!r}?" if near else ""
        raise ValueError(f"{name}={url!r}: fsspec knows no {scheme}://{hint}") from error
    except ImportError as error:
        raise NotInstalled(f"{name}={url!r} needs a library that is not there: {error}.") from error


def filesystem_of(url: str, *, of_its_own: bool = False) -> tuple[Any, str]:  # Any: fsspec has no types
    """The file system, and the path in it. `of_its_own`: shared with nobody, so that it may have a transaction."""
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url, skip_instance_cache=of_its_own)
    return filesystem, path.rstrip("/")
