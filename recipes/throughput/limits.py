"""The optional part of the benchmark: memory and scaling of stored batches, and the targets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from throughput import hand_written, programs
from throughput.rounds import Programs, Samples, Workload, measure
from throughput.tables import Results, column, ratio, spread


@dataclass(frozen=True)
class Target:
    """A ratio in all rounds, and the most or the least that its median may be."""

    name: str
    values: list[float]
    at_most: float = math.inf
    at_least: float = -math.inf

    @property
    def met(self) -> bool | None:
        """Whether the median is within the limit; None if it was not measured."""
        return (
            bool(self.at_least <= np.median(self.values) <= self.at_most) if self.values else None
        )

    @property
    def row(self) -> list[str]:
        """Name, limit, what was measured, verdict."""
        limit = f">= {self.at_least:g}" if self.at_most == math.inf else f"<= {self.at_most:g}"
        verdict = {True: "yes", False: "**no**", None: "not measured"}[self.met]
        return [self.name, limit, spread(self.values, ".3g"), verdict]


def limits(work: Workload, repeats: int, results: Results) -> None:
    """Memory and scaling of stored batches, and the targets of all parts measured."""
    memory(work if work.smoke else replace(work, env_id="Humanoid-v5"), repeats, results)
    lengths = (1, 2, 3) if work.smoke else (1, 2, 4, 8, 16, 32, 64)
    scaling(work, repeats, lengths, results)
    rows = [target.row for target in targets(lengths, results.samples)]
    results.table("Targets", ["target", "limit", "measured", "met"], rows)


def memory(work: Workload, repeats: int, results: Results) -> None:
    """Peak memory with eight batches less that with one."""
    stored, rows = programs.stored_bytes(work, 7), []
    for mode in ("eager", "compiled") if work.compile else ("eager",):
        found: Samples = {"L = 1": [], "L = 8": []}
        of_mode = replace(work, compile=mode == "compiled")
        for _ in range(min(3, repeats)):  # a process has one peak
            pair: Programs = {
                name: (programs.recipe("amber", 8, num_batches=length)[0], 10)
                for name, length in (("L = 1", 1), ("L = 8", 8))
            }
            for name, times in measure(pair, of_mode, 1, f"memory, {mode}").items():
                found[name] += times
        peaks = zip(column(found, "L = 8", "peak"), column(found, "L = 1", "peak"), strict=True)
        more = [high - low for high, low in peaks]
        results.samples[f"memory, {mode}"] = found | {
            "share": [{"whole": m / stored} for m in more]
        }
        mebibytes = spread([size / 2**20 for size in more], ".1f")
        rows.append([mode, f"{stored / 2**20:.1f}", mebibytes])
    header = ["update", "as stored", "peak with L = 8 less with L = 1"]
    results.table(f"Memory of seven more batches, {work.env_id}, MiB", header, rows)


def scaling(work: Workload, repeats: int, lengths: tuple[int, ...], results: Results) -> None:
    """The time of an iteration without its collection, as more batches are stored."""
    measured: Programs = {
        f"{name}, {length}": programs.recipe("amber", 8, length, drop_factor)
        for name, drop_factor in (("all", math.inf), ("one", 0.0))
        for length in lengths
    }
    samples = results.samples["scaling"] = measure(measured, work, repeats, "scaling")
    columns = [(name, part) for name in ("all", "one") for part in ("update", "refresh")]
    rows = []
    for length in lengths:
        cells = (column(samples, f"{name}, {length}", part) for name, part in columns)
        rows.append([str(length), *(spread([1e3 * s for s in cell], ",.1f") for cell in cells)])
    header = ["L", "all in use", "refresh", "one in use", "refresh"]
    title = "Iteration without collection and refresh, and refresh, milliseconds"
    results.table(title, header, rows)


def targets(lengths: tuple[int, ...], samples: dict[str, Samples]) -> list[Target]:
    """The project's targets, as far as the parts that they need were measured."""
    loop, collector = samples.get("loop", {}), samples.get("collector", {})
    update, scaled = samples.get("update", {}), samples.get("scaling", {})
    sb3, torchrl = "Stable-Baselines3 PPO", "stock TorchRL PPO"
    found = [
        Target(
            f"{name}, {envs} env, times as fast as {other}",
            ratio(loop, f"{other}, {envs}", f"{name}, {envs}"),
            at_least=limit,
        )
        for name, envs, other, limit in (
            ("ppo", 8, sb3, 2.5),
            ("ppo", 1, sb3, 3.0),
            ("ppo", 1, torchrl, 6.0),
            ("amber", 8, sb3, 1.3),
            ("amber", 1, sb3, 1.3),
        )
    ]
    pairs = zip(column(loop, "amber, 8", "refresh"), column(loop, "amber, 8"), strict=True)
    shares = [part / whole for part, whole in pairs]
    found.append(Target("refresh, share of an amber iteration, 8 env", shares, at_most=0.03))
    times = ratio(collector, "TorchRL's Collector, 1", "GymCollector, 1")
    title = "GymCollector, 1 env, times as fast as TorchRL's Collector"
    found.append(Target(title, times, at_least=5.0))
    for batches, limit in zip(hand_written.BATCHES, (1.5, 1.35), strict=True):
        part = f"update_{batches}"
        times = ratio(update, "UpdateStep, compiled", "hand-written, compiled", part)
        title = f"compiled update, {batches} in use, over the hand-written one"
        found.append(Target(title, times, at_most=limit))
    for mode in ("eager", "compiled"):
        share = column(samples.get(f"memory, {mode}", {}), "share")
        title = f"peak memory, {mode}, of 7 more batches, over their bytes"
        found.append(Target(title, share, at_most=1.5))
    low, middle, high = lengths[0], lengths[len(lengths) // 2], lengths[-1]
    every = [column(scaled, f"all, {length}", "update") for length in (low, middle, high)]
    bends = [
        (c - b) / (high - middle) / ((b - a) / (middle - low))
        for a, b, c in zip(*every, strict=True)
    ]
    title = f"cost of a batch in use, L = {middle} to {high}, over L = {low} to {middle}"
    found.append(Target(title, bends, at_most=1.25))
    flat = ratio(scaled, f"one, {high}", f"one, {low}", "update")
    title = f"one batch in use, outside refresh, L = {high} over L = {low}"
    found.append(Target(title, flat, at_most=1.1))
    return found
