"""Builds what would be published, installs it into an empty environment, and runs what the first pages print.

    dist/*.whl, dist/*.tar.gz --what is in them--> a wheel of the sdist has the same files
      --pip install *.whl--> an empty environment --> each python block of quickstart and README, alone

    make release-check [PYTHON=python3.13]

PYTHON is the interpreter of the empty environment. pip downloads what the wheel requires, and no torch. The README's
blocks that use torch run with the torch of `.venv`, where that is of the same version of Python. For another version
`--torch` installs the extra `demo` with the torch of constraints.txt, as the README says (an index may give it with
CUDA: 5 GB); without, these blocks are left out, and the last line says so. Ends with 1 at the first thing that is
wrong.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
LIMIT_S = 900.0  # of the longest: torch is downloaded
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
USES_TORCH = re.compile(r"\b(?:torch|fanwise\.rpc|fanwise\.tensor)\b")
NOT_FOR_USERS = re.compile(r"(^|/)(tests|benchmarks|examples|\.[^/]+|__pycache__)/|\.pyc$")
# What has come with pip, by the names of imports; and one error for each layer that an extra brings.
LIGHT = """
import importlib.util, fanwise
assert not [name for name in ("torch", "sklearn", "cryptography", "ray") if importlib.util.find_spec(name)]
uses = "fanwise.rpc", "fanwise.run", "fanwise.zoo.LeNet", "fanwise.tensor.zeros(3)", "fanwise.tune.ForestSearcher()"
for use in uses:
    try:
        eval(use)
    except fanwise.errors.NotInstalled as error:
        print(f"  {use}: {error}")
    else:
        raise SystemExit(f"{use} names no extra")
"""


def run(arguments: Sequence[str | Path], folder: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """What a program prints. Ends this one with what it has said, if it fails."""
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def say(what: str) -> None:
    print(f"{time.monotonic() - BEGAN_S:5.0f} s  {what}", flush=True)


def build(source: Path, kinds: Sequence[str], into: Path) -> None:
    run([sys.executable, "-m", "hatchling", "build", *(f"-t{kind}" for kind in kinds), "-d", into], source)


def built() -> Path:
    """The wheel, after looking into it and into the sdist."""
    for old in DIST.glob("fanwise-*"):
        old.unlink()
    build(ROOT, ["wheel", "sdist"], DIST)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        "fanwise/py.typed",
        "fanwise/docs/errors.md",
        "fanwise/docs/quickstart.md",
        "fanwise/board/page/index.html",
    }
    licence = {name for name in names if name.endswith("dist-info/licenses/LICENSE")}
    odd = sorted(name for name in names if NOT_FOR_USERS.search(name)) + sorted(wanted - names)
    if odd or not licence:
        sys.exit(f"the wheel has what it should not have, or lacks what it should have: {odd or 'a licence'}")
    with tempfile.TemporaryDirectory() as folder, tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        build(source, ["wheel"], Path(folder))
        (again,) = Path(folder).glob("*.whl")
        different = names ^ set(zipfile.ZipFile(again).namelist())
    if different:
        sys.exit(f"a wheel of the sdist has other files: {sorted(different)}")
    say(f"{wheel.name} {wheel.stat().st_size / 1e6:.1f} MB, {sdist.name} {sdist.stat().st_size / 1e6:.1f} MB")
    return wheel


def installed(wheel: Path, python: str, folder: Path) -> Path:
    """The interpreter of an empty environment with the wheel in it."""
    run([python, "-m", "venv", folder])
    own = folder / "bin" / "python"
    run([own, "-m", "pip", "install", "--no-compile", wheel])
    run([own, "-m", "pip", "check"])
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    version = run([own, "-c", "import sys; print(sys.version.split()[0])"]).strip()
    say(f"Python {version}: installed with what it requires, {size / 1e6:.0f} MB")
    return own


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def run_blocks(own: Path, codes: Sequence[str], folder: Path) -> None:
    for number, code in enumerate(codes):
        place = folder / f"block{number}"
        place.mkdir()
        (place / "block.py").write_text(code)
        run([own, "block.py"], place, {"FANWISE_HOME": str(place / "home")})


def lend_torch(own: Path) -> bool:
    """Let the environment find the torch of this interpreter, behind all of its own; False: it could not use it."""
    show = "import json, sys, sysconfig; print(json.dumps([sys.version_info[:2], sysconfig.get_path('purelib')]))"
    version, place = json.loads(run([own, "-c", show]))
    mine, lent = json.loads(run([sys.executable, "-c", show]))
    if version != mine:
        return False
    (Path(place) / "lent.pth").write_text(f"{lent}\n")
    return True


def bring_torch(own: Path, wheel: Path) -> None:
    """Install what the README's lines with torch need."""
    constraints = ROOT / "constraints.txt"
    (torch,) = re.findall(r"^torch==.*$", constraints.read_text(), re.MULTILINE)
    run([own, "-m", "pip", "install", "--no-compile", "-c", constraints, torch])
    run([own, "-m", "pip", "install", "--no-compile", "-c", constraints, f"{wheel}[demo]"])
    run([own, "-m", "pip", "check"])
    version = run([own, "-c", "import torch; print(torch.__version__)"]).strip()
    say(f"torch {version} and the extra demo installed")


def check_release(python: str, *, with_torch: bool) -> None:
    wheel = built()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = installed(wheel, python, folder / "venv")
        fanwise = own.parent / "fanwise"
        print(run([own, "-c", LIGHT], folder), end="")
        for command in ("--version", "--help", "devices", "explain", "explain worker-lost", "tune ls"):
            run([fanwise, *command.split()], folder, {"FANWISE_HOME": str(folder / "home")})
        say("each layer names its extra, and the command works")
        quickstart, readme = blocks(ROOT / "docs" / "quickstart.md"), blocks(ROOT / "README.md")
        light = [code for code in quickstart if not USES_TORCH.search(code)]
        (folder / "light").mkdir()
        run_blocks(own, light, folder / "light")
        say(f"{len(light)} blocks of the quickstart run")
        heavy = [code for code in [*readme, *quickstart] if code not in light]
        if lend_torch(own):
            pass
        elif with_torch:
            bring_torch(own, wheel)
        else:
            say(f"left out: {len(heavy)} blocks with torch, as .venv has another Python")
            return
        (folder / "heavy").mkdir()
        run_blocks(own, heavy, folder / "heavy")
        say(f"{len(heavy)} blocks of the README run, with torch")


if __name__ == "__main__":
    BEGAN_S = time.monotonic()
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--python", default=sys.executable, help="the interpreter of the empty environment")
    asked.add_argument("--torch", action="store_true", help="install torch where the one of .venv does not fit")
    given = asked.parse_args()
    check_release(given.python, with_torch=given.torch)
