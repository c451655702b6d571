"""URLs of fsspec, such as s3://bucket/folder. fsspec is imported on first use."""

from typing import Any

from .errors import NotInstalled
from .nearest import nearest


def is_url(place: object) -> bool:
    """Return True for a URL, and False for a path.

    >>> is_url("s3://bucket/run.pt"), is_url("/tmp/run.pt")
    (True, False)
    """
    return isinstance(place, str) and "://" in place


def scheme_of(url: str) -> str:
    """Return the scheme of a URL.

    >>> scheme_of("s3://bucket/run.pt")
    's3'
    """
    return url.partition("://")[0]


def check_url(url: str, *, name: str) -> None:
    """Raise ValueError or NotInstalled if fsspec cannot open the URL. `name`: of the argument, for the message."""
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
        raise NotInstalled(f"{name}={url!r} needs a library that is not installed: {error}.") from error


def filesystem_of(url: str, *, of_its_own: bool = False) -> tuple[Any, str]:
    """Return the file system and the path in it. `of_its_own`: not cached, so that a transaction is possible."""
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url, skip_instance_cache=of_its_own)
    return filesystem, path.rstrip("/")
