"""Measure what a random policy returns on the study's tasks, for the reference constants.

    python recipes/random_policy.py --out recipes/study/data/references.csv

Actions are drawn uniformly from the action space, by Gymnasium's own sampler. The table gets the
mean return with its standard error, beside the paper's final score of PPO, and says where both
come from. It takes some minutes.
"""

from __future__ import annotations

import csv
import sys
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import gymnasium
import numpy as np
import tyro
from ranges import Range, check_fields
from study.references import paper_task_scores
from tqdm import tqdm

from amber_trl.envs import TASKS


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to measure."""

    out: Path
    """The table, a CSV file; replaced if it is there."""
    episodes: Annotated[int, Range(2)] = 100
    """Least number of episodes per task."""
    frames: Annotated[int, Range(1)] = 100_000
    """Least number of frames per task; whole episodes until both are reached."""
    seed: Annotated[int, Range(0)] = 0
    """Seeds environment and actions."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """Gymnasium ids, of the study's tasks."""


def random_returns(env_id: str, config: Config) -> list[float]:
    """Return of each episode under actions uniform in the action space."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
        env = gymnasium.make(env_id)
    env.action_space.seed(config.seed)
    env.reset(seed=config.seed)
    returns: list[float] = []
    with tqdm(desc=env_id, unit="frame") as bar:
        while len(returns) < config.episodes or bar.n < config.frames:
            env.reset()
            total, over = 0.0, False
            while not over:
                _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                total, over = total + float(reward), terminated or truncated
                bar.update()
            returns.append(total)
    env.close()
    return returns


def row(env_id: str, config: Config) -> dict[str, str | int | float]:
    """The reference constants of one task."""
    returns = random_returns(env_id, config)
    paper = paper_task_scores().query("metric == 'final' and setup == 'ppo'").set_index("task")
    reference = paper.loc[TASKS[env_id].paper_name]
    simulators = ", ".join(f"{name} {version(name)}" for name in ("gymnasium", "mujoco"))
    return {
        "env_id": env_id,
        "random_return": f"{np.mean(returns):.6g}",
        "random_standard_error": f"{np.std(returns, ddof=1) / len(returns) ** 0.5:.3g}",
        "random_episodes": len(returns),
        "reference_return": reference["mean"],
        "reference_std": reference["std"],
        "reference_seeds": 10,
        "source": f"random: recipes/random_policy.py --episodes {config.episodes} --frames "
        f"{config.frames} --seed {config.seed}, {simulators}; "
        "reference: final score of PPO in arXiv 1710.04423",
    }


def main() -> None:
    """Command line."""
    config = tyro.cli(Config, description=__doc__)
    try:
        check_fields(config)
        if unknown := [task for task in config.tasks if task not in TASKS]:
            raise ValueError(f"tasks={unknown}: choose of {list(TASKS)}")
    except ValueError as error:
        sys.exit(f"error: {error}")
    rows = [row(env_id, config) for env_id in config.tasks]
    with config.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
