"""The files of the guide on clusters: for Ray's launcher, for KubeRay and for SLURM.

The first is validated by Ray's schema, the second against fields of KubeRay's reference of ray.io/v1. The third runs
with stand-ins for SLURM, Ray and Python, which record their arguments.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "guides" / "cluster"


def read(name: str) -> Any:  # Any: YAML
    return yaml.safe_load((FOLDER / name).read_text())


# -- Ray's launcher ------------------------------------------------------------------------------------------------


# Runs in a separate process, because importing Ray changes the environment.
VALIDATE = """
import sys, ray, yaml
from ray.autoscaler._private.util import prepare_config, validate_config
config = prepare_config(yaml.safe_load(open(sys.argv[1])))
validate_config(config)
print(config["max_workers"], ray.__version__)
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs fanwise[ray]")
def test_the_file_for_rays_launcher_is_as_ray_wants_it_and_the_manifest_asks_for_this_ray() -> None:
    command = [sys.executable, "-c", VALIDATE, str(FOLDER / "own-machines.yaml")]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    num_workers, version = output.split()[-2:]
    assert int(num_workers) == len(read("own-machines.yaml")["provider"]["worker_ips"])
    assert at(read("kuberay.yaml"), "spec.rayClusterSpec")["rayVersion"] == version


def test_the_commands_of_the_launcher_are_shell() -> None:
    config = read("own-machines.yaml")
    commands = [command for key, value in config.items() if key.endswith("_commands") for command in value]
    assert len(commands) == 7
    subprocess.run(["bash", "-n"], input="\n".join(commands), text=True, check=True)


# -- KubeRay -------------------------------------------------------------------------------------------------------

FIELDS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"entrypoint", "shutdownAfterJobFinishes", "backoffLimit", "rayClusterSpec"},
    "spec.rayClusterSpec": {"rayVersion", "headGroupSpec", "workerGroupSpecs"},
    "spec.rayClusterSpec.headGroupSpec": {"rayStartParams", "template"},
    "spec.rayClusterSpec.workerGroupSpecs": {
        *("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"),
    },
}


def at(manifest: Any, path: str) -> Any:  # Any: YAML
    for name in filter(None, path.split(".")):
        manifest = manifest[name]
    return manifest[0] if isinstance(manifest, list) else manifest


@pytest.mark.parametrize("path", FIELDS)
def test_the_manifest_has_fields_that_kuberay_knows(path: str) -> None:
    assert set(at(read("kuberay.yaml"), path)) <= FIELDS[path]


def test_all_pods_of_the_manifest_have_one_image_and_see_one_folder_of_experiments() -> None:
    manifest = read("kuberay.yaml")
    cluster = manifest["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [group["template"]["spec"] for group in groups]
    assert len({container["image"] for pod in pods for container in pod["containers"]}) == 1
    for pod in pods:
        (container,) = pod["containers"]
        (home,) = (entry["value"] for entry in container["env"] if entry["name"] == "FANWISE_HOME")
        (mount,) = container["volumeMounts"]
        assert home.startswith(mount["mountPath"] + "/")
        assert mount["name"] in {volume["name"] for volume in pod["volumes"]}
    for group in groups:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "as KubeRay wants them"


# -- SLURM ---------------------------------------------------------------------------------------------------------

STAND_INS = {
    "scontrol": 'test "$*" = "show hostnames n[1-3]" && printf "n1\\nn2\\nn3\\n"',
    "srun": """
node=; options=
while [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && node=${1#*=}; options+=" $1"; shift; done
[[ $options == *" --overlap"*" --cpus-per-task=4"* ]] || exit 2
NODE=$node exec "$@"
""",
    "hostname": "echo 10.0.0.1 fe80::1",
    "ray": """
if [[ $1 == health-check ]]; then  # the second time it is there
    [[ $RAY_AUTH_MODE == token && $RAY_AUTH_TOKEN =~ ^[0-9a-f]{64}$ ]] || exit 2
    test -e "$NOTES/asked" && exec echo "$NODE ray $*" >> "$NOTES/said"
    touch "$NOTES/asked"; exit 1
fi
echo "$NODE ray $*" >> "$NOTES/said"
""",
    "python": """
if [[ $1 == -c ]]; then until [[ $(grep -c "ray start" "$NOTES/said") == "$3" ]]; do read -rt 0.01 < /dev/zero; done; fi
echo "$NODE python ${@: -2} $RAY_ADDRESS" >> "$NOTES/said"
[[ $1 == -c ]] || exit "${STATUS:-0}"
""",
}


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a batch script with three nodes, in which everything else is a stand-in."""
    (tmp_path / "bin").mkdir()
    for name, text in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    slurm_variables = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_ID": "14711", "SLURM_CPUS_PER_TASK": "4"}
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(tmp_path), "NOTES": str(tmp_path), "SLURM_GPUS_ON_NODE": "2", **slurm_variables}


def run(job: dict[str, str]) -> tuple[int, list[str]]:
    """Return the exit status, and the calls of Ray and Python with their nodes."""
    done = subprocess.run(
        ["bash", FOLDER / "slurm.sh", "search.py", "--quick"], env=job, timeout=60, capture_output=True, text=True
    )
    calls = Path(job["NOTES"], "said").read_text().splitlines()
    return done.returncode, [line for line in calls if "health-check" not in line]


def test_the_script_for_slurm_starts_ray_on_each_node_and_the_program_on_the_first(job: dict[str, str]) -> None:
    status, calls = run(job)
    assert status == 0
    common = "--num-cpus=4 --num-gpus=2 --object-store-memory=100000000 --block"
    head = "--head --node-ip-address=10.0.0.1 --port=24711 --temp-dir=/tmp/ray-14711 --include-dashboard=false"
    assert calls[-1] == "n1 python search.py --quick 10.0.0.1:24711"
    assert sorted(line for line in calls if " ray " in line) == [
        f"n1 ray start {head} {common}",
        f"n2 ray start --address=10.0.0.1:24711 {common}",
        f"n3 ray start --address=10.0.0.1:24711 {common}",
    ]


def test_the_script_for_slurm_ends_as_its_program_does(job: dict[str, str]) -> None:
    assert run(job | {"STATUS": "3"})[0] == 3


def test_the_wait_for_all_nodes_is_python() -> None:
    script = (FOLDER / "slurm.sh").read_text()
    compile(script.split("python -c '")[1].split("'")[0], "slurm.sh", "exec")
