"""How fast this library trains, beside Stable-Baselines3, stock TorchRL and bare torch.

    pip install "amber_trl[benchmark]"
    python recipes/benchmark_throughput.py
    python recipes/benchmark_throughput.py --parts update memory --json throughput.json
    python recipes/benchmark_throughput.py --profile

Prints a page of Markdown tables: frames per second of each stage of training, what they are
compared with, and whether the project's targets are met; about ten minutes on two quiet cores.
Each program runs in a process of its own, on one thread, and all take turns, iteration by
iteration, so that whatever else the machine does hits all alike; ratios are taken within a round,
and given as medians and quartiles over the rounds. Networks: two hidden layers of 64, tanh.
"""

from __future__ import annotations

import cProfile
import io
import json
import pstats
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import tyro
from throughput import bare, systems
from throughput.page import Page, Target, column, machine, median, rate, ratio, spread, version
from throughput.turns import Finished, Programs, Workload, measure, settle

Part = Literal["loop", "collector", "update", "memory", "scaling"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to measure. Where a default is None, the text says what it stands for."""

    parts: tuple[Part, ...] = get_args(Part)
    """loop: whole training. collector, update: these alone. memory: what stored batches cost.
    scaling: the time of an iteration as the number of stored batches grows."""
    env_id: str | None = None
    """Gymnasium id of a task with continuous actions (HalfCheetah-v5; smoke: Pendulum-v1)."""
    memory_env_id: str | None = None
    """Gymnasium id of the task whose stored batches are weighed (Humanoid-v5; smoke: Pendulum-v1)."""
    repeats: int | None = None
    """Rounds that count, in each of which every program has one turn (10; smoke: 1)."""
    frames_per_batch: int | None = None
    """N, frames of an iteration (2048; smoke: 64)."""
    epochs: int | None = None
    """Passes over the batches in use, per iteration (10; smoke: 1)."""
    minibatch_size: int | None = None
    """Frames of a minibatch per batch in use (64; smoke: 16)."""
    num_batches: tuple[int, ...] | None = None
    """Numbers of batches to store in the part scaling, ascending (1 2 4 8 16 32 64; smoke: 1 2 3)."""
    compile: bool | None = None
    """Whether this library's update and the floor are compiled, too (True; smoke: False)."""
    device: str = "cpu"
    """Torch device of this library's networks and storage; the others stay on the CPU."""
    json: Path | None = None
    """File for the page's every number."""
    profile: bool = False
    """Show only where the time of an iteration goes, by stage and by function."""
    smoke: bool = False
    """Measure everything within 20 seconds, on too few frames to mean anything."""


_SIZES: dict[bool, dict[str, Any]] = {
    False: {"env_id": "HalfCheetah-v5", "memory_env_id": "Humanoid-v5", "repeats": 10}
    | {"frames_per_batch": 2048, "epochs": 10, "minibatch_size": 64, "compile": True}
    | {"num_batches": (1, 2, 4, 8, 16, 32, 64)},
    True: {"env_id": "Pendulum-v1", "memory_env_id": "Pendulum-v1", "repeats": 1}
    | {"frames_per_batch": 64, "epochs": 1, "minibatch_size": 16, "compile": False}
    | {"num_batches": (1, 2, 3)},
}


@dataclass(frozen=True, kw_only=True)
class EffectiveConfig(Config):
    """A configuration in which nothing is left open."""

    env_id: str
    memory_env_id: str
    repeats: int
    frames_per_batch: int
    epochs: int
    minibatch_size: int
    num_batches: tuple[int, ...]
    compile: bool

    @property
    def work(self) -> Workload:
        """What an iteration has to do."""
        return Workload(**{f.name: getattr(self, f.name) for f in fields(Workload)})


def resolve(config: Config) -> EffectiveConfig:
    """Fills in what was left to smoke; refuses what cannot be, by name."""
    given = {name: value for name, value in asdict(config).items() if value is not None}
    effective = EffectiveConfig(**_SIZES[config.smoke] | given)
    if effective.repeats < 1:
        raise ValueError(f"repeats={effective.repeats}: choose at least 1")
    lengths = effective.num_batches
    if len(lengths) < 3 or list(lengths) != sorted(set(lengths)):
        raise ValueError(f"num_batches={lengths}: give three numbers or more, ascending")
    for env_id in (effective.env_id, effective.memory_env_id):
        systems.check(replace(effective.work, env_id=env_id))
    return effective


def recipe(config: EffectiveConfig, setup: str, num_envs: int, **options: Any) -> Any:
    """The main recipe, and the iterations that fill its batches and warm it up."""
    length = options.get("num_batches", 8 if setup == "amber" else 1)
    options |= {"compile": "on" if config.compile else "off", "collector": "fast"}
    return partial(systems.this_recipe, setup=setup, num_envs=num_envs, **options), length + 2


def loop(config: EffectiveConfig, page: Page) -> None:
    """Whole training loops, by stage."""
    programs: Programs = {}
    for envs in (1, 8):
        programs[f"ppo, {envs}"] = recipe(config, "ppo", envs)
        programs[f"amber, {envs}"] = recipe(config, "amber", envs, drop_factor=float("inf"))
        if version("stable_baselines3"):
            sb3 = partial(systems.stable_baselines3, num_envs=envs)
            programs[f"Stable-Baselines3 PPO, {envs}"] = sb3, 1
        if envs == 1:
            programs["stock TorchRL PPO, 1"] = systems.stock_torchrl, 1
        for name, batches in (("ppo", 1), ("amber", 8)):
            floor = partial(bare.floor, num_envs=envs, batches=batches)
            programs[f"floor of {name}, eager, {envs}"] = partial(floor, compile=False), 1
            if config.compile:
                programs[f"floor of {name}, compiled, {envs}"] = partial(floor, compile=True), 1
    samples = page.samples["loop"] = measure(programs, config.work, config.repeats, "loop")
    frames, rows = config.frames_per_batch, []
    for name in samples:
        program, _, envs_ = name.rpartition(", ")
        rows.append(
            [
                *(program, envs_),
                *(median(rate(samples, name, frames, part), ",.0f") for part in _STAGES),
                spread(rate(samples, name, frames), ",.0f"),
                median(ratio(samples, f"Stable-Baselines3 PPO, {envs_}", name), ".2f"),
                median([peak / 2**20 for peak in column(samples, name, "peak")], ",.0f"),
            ]
        )
    header = ["program", "envs", "collection", "update", "refresh", "whole loop"]
    header += ["x Stable-Baselines3", "peak MiB"]
    page.table("Training, frames per second, and peak memory", header, rows)
    for name, envs, other, limit in (
        ("ppo", 8, "Stable-Baselines3 PPO", 2.5),
        ("ppo", 1, "Stable-Baselines3 PPO", 3.0),
        ("ppo", 1, "stock TorchRL PPO", 6.0),
        ("amber", 8, "Stable-Baselines3 PPO", 1.3),
        ("amber", 1, "Stable-Baselines3 PPO", 1.3),
    ):
        times = ratio(samples, f"{other}, {envs}", f"{name}, {envs}")
        title = f"{name}, {envs} env, times as fast as {other}"
        page.targets.append(Target(title, times, at_least=limit))
    pairs = zip(column(samples, "amber, 8", "refresh"), column(samples, "amber, 8"), strict=False)
    shares = [part / whole for part, whole in pairs]
    page.targets.append(Target("refresh, share of an amber iteration, 8 env", shares, at_most=0.03))


_STAGES = ("collect", "update", "refresh")


def collector(config: EffectiveConfig, page: Page) -> None:
    """Collection alone."""
    programs: Programs = {}
    for envs in (1, 8):
        programs[f"simulator, random actions, {envs}"] = partial(bare.simulate, num_envs=envs), 1
        for name, kind in (("GymCollector", "fast"), ("TorchRL's Collector", "torchrl")):
            program = partial(systems.collect, collector=kind, num_envs=envs)
            programs[f"{name}, {envs}"] = program, 1
        if config.device != "cpu":
            program = partial(systems.collect_on_device, num_envs=envs)
            programs[f"GymCollector with its actor on {config.device}, {envs}"] = program, 1
    samples = page.samples["collector"] = measure(
        programs, config.work, config.repeats, "collector"
    )
    rows = []
    for name in samples:
        system, _, envs_ = name.rpartition(", ")
        times = ratio(samples, f"TorchRL's Collector, {envs_}", name)
        rates = rate(samples, name, config.frames_per_batch)
        rows.append([system, envs_, spread(rates, ",.0f"), median(times, ".2f")])
    header = ["program", "envs", "collection", "x TorchRL's Collector"]
    page.table("Collection alone, frames per second", header, rows)
    times = ratio(samples, "TorchRL's Collector, 1", "GymCollector, 1")
    title = "GymCollector, 1 env, times as fast as TorchRL's Collector"
    page.targets.append(Target(title, times, at_least=5.0))


def update(config: EffectiveConfig, page: Page) -> None:
    """One update, by size of the minibatch."""
    programs: Programs = {}
    for mode in ("eager", "compiled") if config.compile else ("eager",):
        for name, program in (("UpdateStep", systems.update), ("by hand", bare.update)):
            programs[f"{name}, {mode}"] = partial(program, compile=mode == "compiled"), 1
    samples = page.samples["update"] = measure(programs, config.work, config.repeats, "update")
    parts = {f"update_{k}": k * config.minibatch_size for k in bare.BATCHES}
    rows = [
        [name, *(spread([1e3 * s for s in column(samples, name, p)], ".3f") for p in parts)]
        for name in samples
    ]
    header = ["one update", *(f"{size} frames" for size in parts.values())]
    page.table("Updates alone, milliseconds", header, rows)
    for (part, size), limit in zip(parts.items(), (1.5, 1.35), strict=True):
        times = ratio(samples, "UpdateStep, compiled", "by hand, compiled", part)
        title = f"compiled update, {size} frames, over the one by hand"
        page.targets.append(Target(title, times, at_most=limit))


def memory(config: EffectiveConfig, page: Page) -> None:
    """Peak memory with eight batches less that with one."""
    work = replace(config.work, env_id=config.memory_env_id)
    stored, rows = systems.stored_bytes(work, 7), []
    for mode in ("eager", "compiled") if config.compile else ("eager",):
        config = replace(config, compile=mode == "compiled")
        few, many = (
            recipe(config, "amber", 8, num_batches=length, drop_factor=float("inf"))[0]
            for length in (1, 8)
        )
        found = page.samples[f"memory, {mode}"] = {"L = 1": [], "L = 8": []}
        for _ in range(min(3, config.repeats)):
            programs = {"L = 1": (few, 10), "L = 8": (many, 10)}
            for name, rounds in measure(programs, work, 1, f"memory, {mode}").items():
                found[name] += rounds
        pairs = zip(column(found, "L = 8", "peak"), column(found, "L = 1", "peak"), strict=True)
        more = [high - low for high, low in pairs]
        mebibytes = [size / 2**20 for size in more]
        rows.append([mode, f"{stored / 2**20:.1f}", spread(mebibytes, ".1f")])
        title = f"peak memory, {mode}, of 7 more batches, over their bytes"
        page.targets.append(Target(title, [size / stored for size in more], at_most=1.5))
    header = ["update", "as stored", "peak with L = 8 less with L = 1"]
    page.table(f"Memory of seven more batches, {config.memory_env_id}, MiB", header, rows)


def scaling(config: EffectiveConfig, page: Page) -> None:
    """An iteration without its collection, as more batches are stored."""
    programs: Programs = {}
    for name, drop_factor in (("all", float("inf")), ("one", 0.0)):
        for length in config.num_batches:
            options = {"num_batches": length, "drop_factor": drop_factor}
            programs[f"{name}, {length}"] = recipe(config, "amber", 8, **options)
    samples = page.samples["scaling"] = measure(programs, config.work, config.repeats, "scaling")
    for rounds in samples.values():
        for times in rounds:
            if "refresh" in times:
                times["rest"] = times["whole"] - times["collect"] - times["refresh"]
    columns = [(name, part) for name in ("all", "one") for part in ("rest", "refresh")]
    rows = []
    for length in config.num_batches:
        cells = (column(samples, f"{name}, {length}", part) for name, part in columns)
        rows.append([str(length), *(spread([1e3 * s for s in cell], ",.1f") for cell in cells)])
    header = ["L", "all active", "refresh", "one active", "refresh"]
    page.table("Iteration without collection and refresh, and refresh, milliseconds", header, rows)
    low, middle, high = (config.num_batches[i] for i in (0, len(config.num_batches) // 2, -1))
    every = [column(samples, f"all, {length}", "rest") for length in (low, middle, high)]
    bends = [
        (c - b) / (high - middle) / ((b - a) / (middle - low))
        for a, b, c in zip(*every, strict=True)
    ]
    title = f"cost of an active batch, L = {middle} to {high}, over L = {low} to {middle}"
    page.targets.append(Target(title, bends, at_most=1.25))
    flat = ratio(samples, f"one, {high}", f"one, {low}", "rest")
    title = f"one batch active, outside refresh, L = {high} over L = {low}"
    page.targets.append(Target(title, flat, at_most=1.1))


class ProfiledTurns:
    """Lets iterations pass, profiles those that follow, and ends."""

    def __init__(self, burn_in: int, profiled: int) -> None:
        self.profiler = cProfile.Profile()
        self.seconds: dict[str, float] = {}
        self._burn_in, self._profiled, self._done = burn_in, profiled, 0

    def __call__(self, **parts: float) -> None:
        """Ends an iteration."""
        self.profiler.disable()
        if self._done >= self._burn_in:
            for name, seconds in parts.items():
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self._done += 1
        if self._done == self._burn_in + self._profiled:
            raise Finished
        if self._done >= self._burn_in:
            self.profiler.enable()


def profile(config: EffectiveConfig, page: Page) -> None:
    """Where an iteration of the recipe spends its time; profiling makes Python slower."""
    for setup, options in (("ppo", {}), ("amber", {"drop_factor": float("inf")})):
        program, burn_in = recipe(config, setup, 8, **options)
        turns = ProfiledTurns(burn_in, config.repeats)
        with suppress(Finished):
            program(config.work, turns)
        whole = sum(turns.seconds.values())
        rows = [[name, f"{seconds / whole:.1%}"] for name, seconds in turns.seconds.items()]
        page.table(f"{setup}, 8 environments, stages of an iteration", ["stage", "share"], rows)
        found = io.StringIO()
        statistics = pstats.Stats(turns.profiler, stream=found).strip_dirs()
        statistics.sort_stats("tottime").print_stats(25)
        page.lines += ["```", found.getvalue().strip(), "```", ""]


_PARTS: dict[str, Callable[[EffectiveConfig, Page], None]] = {
    "loop": loop,
    "collector": collector,
    "update": update,
    "memory": memory,
    "scaling": scaling,
}


def run(config: Config) -> Page:
    """Measures what is asked for, and puts the page together."""
    effective, page, before = resolve(config), Page(), machine()
    settle()
    for part in [profile] if config.profile else [_PARTS[name] for name in config.parts]:
        part(effective, page)
    if page.targets:
        header = ["target", "limit", "measured", "met"]
        page.table("Targets", header, [target.row for target in page.targets])
    after = machine()["load"]
    page.lines[:0] = [
        f"{effective.env_id}, N = {effective.frames_per_batch}, epochs: {effective.epochs}, "
        f"minibatches of {effective.minibatch_size} frames per batch in use, one thread, "
        f"networks on {config.device}; medians (and quartiles) of rounds: {effective.repeats}.\n",
        f"{before['processor']}, {before['system']}, load {before['load']} to {after}; "
        f"{before['versions']}.\n",
    ]
    if config.json is not None:
        targets = [{**asdict(target), "met": target.met} for target in page.targets]
        found = {"machine": before, "samples": page.samples, "targets": targets}
        config.json.write_text(json.dumps({"config": asdict(effective), **found}, default=str))
    return page


def main() -> int:
    """Command line; returns the exit code."""
    config = tyro.cli(Config, description=__doc__)
    try:
        page = run(config)
    except (ValueError, TypeError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
    sys.stdout.write("\n".join(page.lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
