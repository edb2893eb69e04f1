"""Measure the return of a random policy on the study's tasks, for the reference constants.

    python recipes/random_policy.py --out recipes/study/data/references.csv

Actions are drawn uniformly from the action space, by Gymnasium's own sampler. The table holds the mean
return with its standard error, the paper's final score of PPO, and the source of both. It takes a few
minutes.
"""

from __future__ import annotations

import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pandas as pd
import tyro
from study.references import paper_task_scores
from tqdm import tqdm

from amber_trl.envs import TASKS


def random_returns(env_id: str, episodes: int, frames: int, seed: int) -> list[float]:
    """Return of each episode; plays whole episodes until there are enough episodes and frames."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
        env = gymnasium.make(env_id)
    env.action_space.seed(seed)
    env.reset(seed=seed)
    returns: list[float] = []
    with tqdm(desc=env_id, unit="frame") as bar:
        while len(returns) < episodes or bar.n < frames:
            env.reset()
            total, over = 0.0, False
            while not over:
                _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                total, over = total + float(reward), terminated or truncated
                bar.update()
            returns.append(total)
    env.close()
    return returns


def main(out: Path, episodes: int = 100, frames: int = 100_000, seed: int = 0) -> None:
    """Runs the command line.

    Args:
        out: the table, a CSV file; an existing one is replaced.
        episodes: minimum number of episodes per task.
        frames: minimum number of frames per task.
        seed: seed of environments and actions.
    """
    paper = paper_task_scores().query("metric == 'final' and setup == 'ppo'").set_index("task")
    simulators = ", ".join(f"{name} {version(name)}" for name in ("gymnasium", "mujoco"))
    rows: list[dict[str, Any]] = []
    for task in TASKS.values():
        returns = random_returns(task.env_id, episodes, frames, seed)
        row = {
            "env_id": task.env_id,
            "random_return": f"{np.mean(returns):.6g}",
            "random_standard_error": f"{np.std(returns, ddof=1) / len(returns) ** 0.5:.3g}",
            "random_episodes": len(returns),
            "reference_return": paper.loc[task.paper_name, "mean"],
            "reference_std": paper.loc[task.paper_name, "std"],
            "reference_seeds": 10,
            "source": f"random: recipes/random_policy.py --episodes {episodes} --frames {frames} "
            f"--seed {seed}, {simulators}; reference: final score of PPO in arXiv 1710.04423",
        }
        rows.append(row)
    pd.DataFrame(rows).to_csv(out, index=False)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
