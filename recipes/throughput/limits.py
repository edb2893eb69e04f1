"""Optional part of the benchmark: memory and time of stored batches, and the targets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from throughput import hand_written, programs
from throughput.rounds import Programs, Samples, Workload, measure
from throughput.tables import Results, column, ratio, spread

# part | seconds or bytes of a program | over those of another | limit of the median ratio
_TARGETS = """
loop    | Stable-Baselines3 PPO, 8: whole          | ppo, 8: whole                 | >= 2.5
loop    | Stable-Baselines3 PPO, 1: whole          | ppo, 1: whole                 | >= 3
loop    | stock TorchRL PPO, 1: whole              | ppo, 1: whole                 | >= 6
loop    | Stable-Baselines3 PPO, 8: whole          | amber, 8: whole               | >= 1.3
loop    | Stable-Baselines3 PPO, 1: whole          | amber, 1: whole               | >= 1.3
loop    | amber, 8: refresh                        | amber, 8: whole               | <= 0.03
loop    | ppo, 8: update                           | hand-written ppo, 8: update   | <= 1.5
loop    | amber, 8: update                         | hand-written amber, 8: update | <= 1.5
loop    | ppo with TorchRL's Collector, 1: collect | ppo, 1: collect               | >= 5
memory  | eager: more                              | eager: stored                 | <= 1.5
memory  | compiled: more                           | compiled: stored              | <= 1.5
scaling | all, 64: update                          | all, 8: update                | <= 10
scaling | one, 64: update                          | one, 1: update                | <= 1.1
"""


def targets(samples: dict[str, Samples]) -> list[list[str]]:
    """Each target with its ratio, taken within each round, and whether it is met."""
    rows = []
    for line in _TARGETS.strip().splitlines():
        part, over, under, limit = (cell.strip() for cell in line.split("|"))
        ratios = ratio(samples.get(part, {}), over, under)
        verdict = "not measured"
        if ratios:
            side, number = limit.split()
            middle, bound = float(np.median(ratios)), float(number)
            met = middle >= bound if side == ">=" else middle <= bound
            verdict = "yes" if met else "**no**"
        rows.append([f"{over} / {under}", limit, spread(ratios, ".3g"), verdict])
    return rows


def limits(work: Workload, repeats: int, results: Results) -> None:
    """Memory and time of stored batches, and the targets of all measured parts."""
    memory(work if work.smoke else replace(work, env_id="Humanoid-v5"), min(3, repeats), results)
    scaling(work, repeats, results)
    header = ["target", "limit", "measured", "met"]
    results.table("Targets", header, targets(results.samples))


def memory(work: Workload, repeats: int, results: Results) -> None:
    """Peak memory with eight batches minus that with one."""
    *_, frames = hand_written.random_problem(work)  # of eight batches
    stored, rows = 7 / 8 * sum(frames[key].nbytes for key in hand_written.KEYS), []
    found = results.samples["memory"] = {}
    for mode in ("eager", "compiled") if work.compile else ("eager",):
        of_mode, found[mode] = replace(work, compile=mode == "compiled"), []
        for _ in range(repeats):  # each in a new process, since a process has one peak
            pair: Programs = {
                str(length): (programs.recipe("amber", 8, num_batches=length)[0], 10)
                for length in (1, 8)
            }
            peaks = measure(pair, of_mode, 1, f"memory, {mode}")
            more = peaks["8"][0]["peak"] - peaks["1"][0]["peak"]
            found[mode].append({"more": more, "stored": stored})
        mebibytes = [size / 2**20 for size in column(found, mode, "more")]
        rows.append([mode, f"{stored / 2**20:.1f}", spread(mebibytes, ".1f")])
    header = ["update", "as stored", "peak with L = 8 less with L = 1"]
    results.table(f"Memory of seven more batches, {work.env_id}, MiB", header, rows)


def scaling(work: Workload, repeats: int, results: Results) -> None:
    """Time of an iteration without collection, as more batches are stored."""
    lengths = (1, 2) if work.smoke else (1, 2, 4, 8, 16, 32, 64)
    measured: Programs = {
        f"{name}, {length}": programs.recipe(
            "amber", 8, num_batches=length, drop_factor=drop_factor
        )
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
