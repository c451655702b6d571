"""The processes that workers are forked from: one loads torch, and each of its forks learns one file of tests."""

from pathlib import Path

from rpc_workers import Nursery, Workers


def modules(nursery: Nursery, folder: Path) -> set[str]:
    """What a worker that is forked from it has loaded."""
    folder.mkdir()
    workers = Workers(nursery, folder)
    try:
        return set(workers.start("w0").do(eval, "list(__import__('sys').modules)"))
    finally:
        workers.close()


def test_what_a_nursery_learns_no_other_has(first_nursery: Nursery, tmp_path: Path) -> None:
    with first_nursery.another() as one:
        one.learn(__name__, __file__)
        assert {"torch", __name__} <= modules(one, tmp_path / "one")
        with first_nursery.another() as other:
            found = modules(other, tmp_path / "other")
    assert "torch" in found and __name__ not in found
