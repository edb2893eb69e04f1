"""A user's own training around ``TrainingRun``: ``python -m tests.runs.own_recipe DIR [resume]``."""

import sys
from typing import Any

import torch
from torchrl.objectives import ReinforceLoss
from torchrl.objectives.value import GAE

from amber_trl.collectors import GymCollector
from amber_trl.envs import make_env
from amber_trl.modules import gaussian_actor, value_critic
from amber_trl.runs import Policy, RunDirectory, TrainingRun

FRAMES = 64


def train(path: str, resume: bool = False, iterations: int = 40, **options: Any) -> TrainingRun:
    """Trains InvertedPendulum by REINFORCE; ``on_batch`` is called with each batch."""
    on_batch = options.pop("on_batch", lambda run, batch: None)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    env = make_env("InvertedPendulum-v5", num_envs=options.pop("num_envs", 2), seed=0)
    arguments: dict[str, Any] = {"observation_size": 4, "action_size": 1}
    actor, critic = gaussian_actor(**arguments), value_critic(4)
    loss = ReinforceLoss(actor, critic)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    total = iterations * FRAMES
    collector = GymCollector(env, actor, frames_per_batch=FRAMES, total_frames=total)
    parts = {"loss": loss, "optimizer": optimizer}
    parts["policy"] = Policy("InvertedPendulum-v5", arguments, actor)
    directory = RunDirectory(path, resume=resume)
    options = {"progress": False, **options}
    with TrainingRun(directory, collector, parts, **options) as run:
        for batch in run.batches():
            on_batch(run, batch)
            losses = loss(advantage(batch))
            (losses["loss_actor"] + losses["loss_value"]).backward()
            optimizer.step()
            optimizer.zero_grad()
            run.record(batch, {"learning_rate": 1e-2}, losses.detach())
    return run


if __name__ == "__main__":
    train(sys.argv[1], resume="resume" in sys.argv, iterations=80, checkpoint_interval=1)
