"""Spaces as YAML, and the errors of invalid files."""

from pathlib import Path

import pytest

from fanwise.cli.space_files import read_space
from fanwise.tune import (
    Space,
    choice,
    constant,
    finrange,
    logordinal,
    lograndint,
    loguniform,
    parameter,
    qlograndint,
    randint,
    uniform,
)
from fanwise.tune.space import space_from_json, space_to_json
from fanwise.tune.space.domains import DOMAIN_TYPES


def written(folder: Path, text: str) -> Path:
    path = folder / "space.yaml"
    path.write_text(text)
    return path


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(ValueError) as caught:
        read_space(written(folder, text))
    return str(caught.value).removeprefix(str(folder))


def test_all_domains_and_constants_are_read(tmp_path: Path) -> None:
    text = """
        a: {uniform: [0, 0.95]}
        b: {loguniform: {lower: 1e-2, upper: 1}}
        c: {randint: [32, 256]}
        d: {lograndint: [8, 1024]}
        e: {choice: [relu, tanh, 3, null]}
        f: {finrange: {lower: 0, upper: 1, size: 5}}
        g: 10
        h: {constant: [1, 2]}
        i: {constant: {hidden: 3}}
    """
    assert read_space(written(tmp_path, text)) == Space(
        {
            "a": uniform(0, 0.95),
            "b": loguniform(1e-2, 1),
            "c": randint(32, 256),
            "d": lograndint(8, 1024),
            "e": choice(["relu", "tanh", 3, None]),
            "f": finrange(0, 1, 5),
            "g": 10,
            "h": constant([1, 2]),
            "i": {"hidden": 3},
        }
    )


def test_every_domain_is_read_from_a_list_and_by_name(tmp_path: Path) -> None:
    text = """
        a: {reverseloguniform: [0.9, 0.999]}
        b: {quniform: [0, 1, 0.25]}
        c: {qloguniform: {lower: 0.25, upper: 1, q: 0.25}}
        d: {qrandint: [8, 64, 8]}
        e: {qlograndint: {lower: 8, upper: 64, q: 8}}
        f: {finrange: [1, 9, 5, true]}
        g: {logfinrange: {lower: 1e-3, upper: 1, size: 4}}
        h: {ordinal: [small, large]}
        i: {ordinal: {categories: [1, 2, 9], kind: nn-log}}
        j: {logordinal: [1, 2, 9]}
        k: {uniform: [0, 1]}
        l: {loguniform: [1e-3, 1]}
        m: {randint: [1, 3]}
        n: {lograndint: [1, 3]}
        o: {choice: {categories: [1, x]}}
    """
    space = read_space(written(tmp_path, text))
    domain_types = {entry["domain"] for entry in space_to_json(space).values() if isinstance(entry, dict)}
    assert domain_types | {"logordinal"} == set(DOMAIN_TYPES)
    assert space_from_json(space_to_json(space)) == space
    assert space.domains["i"] == space.domains["j"] == logordinal([1, 2, 9])
    assert space.domains["e"] == qlograndint(8, 64, 8)


def test_other_text_with_parentheses_is_a_constant(tmp_path: Path) -> None:
    texts = ["mean (of 3)", "f(x) = 2 * x", "(1, 2)", "resnet(50)", "uniform", "a uniform(0, 1)"]
    body = "".join(f"x{number}: '{text}'\n" for number, text in enumerate(texts))
    assert list(read_space(written(tmp_path, body)).constants.values()) == texts
    assert read_space(written(tmp_path, "x: {constant: 'uniform(0, 1)'}")).constants == {"x": "uniform(0, 1)"}


def test_conditions_and_priors_are_read(tmp_path: Path) -> None:
    text = """
        optimizer: {choice: [sgd, adam, rmsprop], prior: adam}
        momentum: {uniform: [0, 0.99], when: {optimizer: [sgd, rmsprop]}, prior: 0.9, confidence: high}
        steps: {constant: [1, 2], when: {optimizer: adam}}
    """
    assert read_space(written(tmp_path, text)) == Space(
        {
            "optimizer": parameter(choice(["sgd", "adam", "rmsprop"]), prior="adam"),
            "momentum": parameter(
                uniform(0, 0.99), when={"optimizer": ["sgd", "rmsprop"]}, prior=0.9, confidence="high"
            ),
            "steps": parameter(constant([1, 2]), when={"optimizer": "adam"}),
        }
    )


def test_powers_of_ten_without_a_point_are_numbers(tmp_path: Path) -> None:
    space = read_space(written(tmp_path, "a: 1e-4\nb: -2E3\nc: 1.5e3\nd: e3\n"))
    assert dict(space.constants) == {"a": 1e-4, "b": -2000.0, "c": 1500.0, "d": "e3"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: {uniform: [2, 1]}", "/space.yaml: x: uniform: lower 2.0 is above upper 1.0; write uniform(1.0, 2.0)"),
        (
            "x: {loguniform: [0, 1]}",
            "x: loguniform: lower must be above 0, got 0.0; to include 0, use uniform",
        ),
        ("x: {unifrom: [1, 2]}", "/space.yaml: x: no domain 'unifrom'; did you mean 'uniform'?"),
        ("x: {a: 1, b: 2}", "/space.yaml: x must name one domain, got a, b"),
        ("x: [1, 2]", "/space.yaml: x is a bare list, which is ambiguous:\n  one of these values for"),
        ("x: {}", "/space.yaml: x must name one domain, got none"),
        ("x: {uniform: 3}", "/space.yaml: x: uniform needs its bounds, e.g. {uniform: [1, 10]}, got 3"),
        ("x: {uniform: [1]}", "missing 1 required positional argument: 'upper'"),
        ("x: {uniform: {low: 1, upper: 2}}", "'low'"),
        ("x: {randint: [one, 2]}", "/space.yaml: x: randint: lower must be an int, got 'one' of type str"),
        ("x: 1\nx: 2", "'x' is given twice"),
        ("x: {when: {y: 1}}", "/space.yaml: x must name one domain, got none"),
        ("x: {uniform: [0, 1], confidance: high}", "/space.yaml: x must name one domain, got uniform, confidance"),
        ("x: {uniform: [0, 1], when: {y: 1}}", "/space.yaml: 'x' depends on 'y', which is not in the space"),
        ("x: {uniform: [0, 1], prior: 2}", "/space.yaml: 'x': prior 2 is not in uniform(0.0, 1.0)"),
        (
            "x: {qrandint: [1, 9, 4]}",
            "/space.yaml: x: qrandint: lower 1 is not a multiple of q = 4; the nearest",
        ),
        ("x: {logordinal: 3}", "/space.yaml: x: logordinal needs its bounds, e.g. {logordinal: [1, 10]}, got 3"),
        ("x: uniform(0, 1)", "/space.yaml: x: write {uniform: [...]} instead of the call 'uniform(0, 1)' (as a text"),
        ("x: [1,", "/space.yaml is not YAML: "),
        ("x: [1,", '/space.yaml", line 1, column 7:\n    x: [1,\n'),
        ("", "/space.yaml must map names of hyperparameters to domains, e.g.\n  learning_rate: {loguniform"),
        ("- x", "/space.yaml must map names of hyperparameters to domains"),
        ("3: {uniform: [1, 2]}", "/space.yaml must map names of hyperparameters to domains"),
    ],
)
def test_errors_name_the_file_and_the_entry(text: str, message: str, tmp_path: Path) -> None:
    assert message in complaint(tmp_path, text)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the space file '.*/none.yaml' cannot be read: No such file"):
        read_space(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_space(tmp_path)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"space\.yaml is not a text file"):
        read_space(path)


def test_yaml_cannot_create_objects(tmp_path: Path) -> None:
    assert "is not YAML" in complaint(tmp_path, "x: !!python/object/apply:os.getpid []")
