"""Measure training speed against Stable-Baselines3, stock TorchRL and hand-written torch.

    pip install stable-baselines3
    python recipes/benchmark_throughput.py
    python recipes/benchmark_throughput.py --repeats 3 --json speed.json
    python recipes/benchmark_throughput.py --limits

Prints tables in Markdown: frames per second of each training stage, next to the programs compared;
about ten minutes on two quiet cores. Each program runs on one thread in a process of its own. All take
turns, iteration by iteration, so that other load on the machine affects all of them alike. Ratios are
taken within a round; tables show their medians and quartiles over the rounds. Networks have two
hidden layers of 64 units with tanh.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from ranges import Range, check_fields
from throughput import hand_written, programs
from throughput.limits import limits
from throughput.rounds import Programs, Workload, measure, settle
from throughput.tables import Results, column, machine, median, rate, ratio, spread

from amber_trl._provenance import version


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to measure. Where the default is None, the parentheses say what applies."""

    limits: bool = False
    """Also measure memory and time as more batches are stored (twenty minutes), and report whether the
    project's targets are met."""
    env_id: str | None = None
    """Gymnasium id of a task with continuous actions (HalfCheetah-v5; smoke: Pendulum-v1)."""
    repeats: Annotated[int | None, Range(1)] = None
    """Rounds to measure; every program runs one iteration in each (10; smoke: 1)."""
    compile: bool = True
    """Compile this library's update and the hand-written one (smoke: never)."""
    device: str = "cpu"
    """Torch device for this library's networks and storage; the other programs stay on the CPU."""
    json: Path | None = None
    """JSON file for every number measured."""
    smoke: bool = False
    """Measure everything within 20 seconds, with too few frames for meaningful numbers."""


def workload(config: Config) -> Workload:
    """The work of one iteration."""
    small = config.smoke
    return Workload(
        env_id=config.env_id or ("Pendulum-v1" if small else "HalfCheetah-v5"),
        frames_per_batch=64 if small else 2048,
        epochs=1 if small else 10,
        minibatch_size=16 if small else 64,
        compile=config.compile and not small,
        device=config.device,
        smoke=small,
    )


def loop(work: Workload, repeats: int, results: Results) -> None:
    """Whole training loops, by stage."""
    measured: Programs = {}
    for envs in (1, 8):
        measured[f"ppo, {envs}"] = programs.recipe("ppo", envs)
        measured[f"amber, {envs}"] = programs.recipe("amber", envs)
        stock_collector = programs.recipe("ppo", envs, collector="torchrl")
        measured[f"ppo with TorchRL's Collector, {envs}"] = stock_collector
        simulator = partial(hand_written.simulate, num_envs=envs)
        measured[f"simulator, random actions, {envs}"] = simulator, 1
        if version("stable_baselines3"):
            program = partial(programs.stable_baselines3, num_envs=envs)
            measured[f"Stable-Baselines3 PPO, {envs}"] = program, 1
        if envs == 1:
            measured["stock TorchRL PPO, 1"] = programs.stock_torchrl, 1
        for name, batches in (("ppo", 1), ("amber", 8)):
            program = partial(hand_written.train, num_envs=envs, batches=batches)
            measured[f"hand-written {name}, {envs}"] = program, 1
    samples = results.samples["loop"] = measure(measured, work, repeats, "loop")
    frames, rows = work.frames_per_batch, []
    for name in samples:
        program_, _, envs_ = name.rpartition(", ")
        stages = (rate(samples, name, frames, part) for part in ("collect", "update", "refresh"))
        rows.append(
            [
                *(program_, envs_),
                *(median(stage, ",.0f") for stage in stages),
                spread(rate(samples, name, frames), ",.0f"),
                median(ratio(samples, f"Stable-Baselines3 PPO, {envs_}", name), ".2f"),
                median([peak / 2**20 for peak in column(samples, name, "peak")], ",.0f"),
            ]
        )
    header = ["program", "envs", "collection", "update", "refresh", "whole loop"]
    header += ["x Stable-Baselines3", "peak MiB"]
    results.table("Training, frames per second, and peak memory", header, rows)


def run(config: Config) -> Results:
    """Measures what the options ask for."""
    check_fields(config)
    settle()
    work, results, load = workload(config), Results(), os.getloadavg()[0]
    repeats = config.repeats or (1 if config.smoke else 10)
    loop(work, repeats, results)
    if config.limits:
        limits(work, repeats, results)
    results.lines[:0] = [
        f"{work.env_id}, N = {work.frames_per_batch}, epochs: {work.epochs}, minibatches of "
        f"{work.minibatch_size} frames per batch in use, one thread, networks on {work.device}; "
        f"medians (and quartiles) of rounds: {repeats}.\n",
        f"{machine()}; load {load:.1f} to {os.getloadavg()[0]:.1f}.\n",
    ]
    if config.json is not None:
        found = {"workload": asdict(work), "machine": machine(), "samples": results.samples}
        config.json.write_text(json.dumps(found))
    return results


def main() -> int:
    """Runs the command line; returns the exit code."""
    config = tyro.cli(Config, description=__doc__)
    try:
        results = run(config)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        sys.exit(f"error: {error}")
    sys.stdout.write("\n".join(results.lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
