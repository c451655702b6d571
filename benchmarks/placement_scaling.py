"""What it takes to find a job its host in a pool of 10 to 10,000 hosts: decisions alone, without links or processes.

Hosts of eight CPUs are filled with jobs of one CPU; then a random job ends and one that waits takes its place, again
and again. A time is that of both, on one core. In the second column every fourth host also has four GPUs, every fourth
job needs half a GPU and no two machines have the same memory.

    python benchmarks/placement_scaling.py [--jobs 20000] [--hosts 10 1250 10000]
"""

import argparse
import random
import time

from measuring import finish, machine, say, table

from fanwise.pool import Machine, Resources
from fanwise.pool.cluster.placement import JobPlacement
from fanwise.pool.leases import Gpu

CPUS, GPUS = 8, 4
HOSTS = (10, 125, 1_250, 10_000)
ALIKE, MIXED = "hosts alike", "some with GPUs"


def machine_of(number: int, kind: str) -> Machine:
    """The machine of one host."""
    if kind == ALIKE:
        return Machine(CPUS, 64 << 30)
    cards = tuple(Gpu(i, f"{number}-{i}", "", 0, f"{number}-{i}") for i in range(0 if number % 4 else GPUS))
    return Machine(CPUS, (64 << 30) - 4096 * number, cards)


def needs_of(job: int, kind: str) -> Resources:
    return Resources(gpus=0.5) if kind == MIXED and job % 4 == 0 else Resources()


def us_a_job(num_hosts: int, kind: str, num_jobs: int) -> float:
    """To give a job's CPU back and to place the next one, in microseconds of processor time."""
    chance, placement = random.Random(0), JobPlacement()
    for number in range(num_hosts):
        placement.join(f"host-{number}", machine_of(number, kind))
    last = num_hosts * CPUS
    for job in range(last):
        placement.add(job, needs_of(job, kind))
    running = [placed.job for placed in placement.place()]
    began_s = time.process_time()
    for job in range(last, last + num_jobs):
        placement.add(job, needs_of(job, kind))
        place = chance.randrange(len(running))
        running[place], running[-1] = running[-1], running[place]
        placement.release(running.pop())
        running += [placed.job for placed in placement.place()]
    return 1e6 * (time.process_time() - began_s) / num_jobs


def main() -> None:
    parser = argparse.ArgumentParser(description="what it takes to find a job its host")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--hosts", type=int, nargs="+", default=list(HOSTS))
    args = parser.parse_args()
    facts, found = machine(), dict[int, list[float]]()
    for num_hosts in args.hosts:
        found[num_hosts] = [us_a_job(num_hosts, kind, args.jobs) for kind in (ALIKE, MIXED)]
        say(f"  {num_hosts:,} hosts: {found[num_hosts]}")
    rows = [[f"{hosts:,}", f"{CPUS * hosts:,}", *(f"{us:.0f}" for us in times)] for hosts, times in found.items()]
    header = ["hosts", "workers", f"us a job, {ALIKE}", MIXED]
    finish(
        "placement_scaling", [table(header, rows)], {str(hosts): times for hosts, times in found.items()}, facts=facts
    )


if __name__ == "__main__":
    main()
