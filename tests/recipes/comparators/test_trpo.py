"""TRPO: sb3-contrib's update on this library's networks, and its recipe."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import run_recipe
from comparators import common, trpo
from tensordict import TensorDict

from amber_trl.envs import make_env
from amber_trl.errors import NonFiniteDataError
from amber_trl.modules import ObservationNormalizer, gaussian_actor, value_critic
from amber_trl.runs import load_policy
from tests.runs.left import read_tables

pytest.importorskip("sb3_contrib")


def config(run_dir: Path, **options: Any) -> trpo.Config:
    given: dict[str, Any] = {
        "env_id": "Pendulum-v1",
        "total_frames": 768,
        "frames_per_batch": 256,
    } | options
    return trpo.Config(run_dir=run_dir, progress=False, **given)


def test_the_step_is_made_on_this_librarys_networks(tmp_path: Path) -> None:
    asked = config(tmp_path)
    env = make_env("Pendulum-v1", 1)
    normalizer = ObservationNormalizer(3)
    normalizer.update(torch.randn(100, 3) * 2 + 1)
    actor = gaussian_actor(3, 1, normalizer=normalizer)
    critic = value_critic(3, normalizer=normalizer)
    model = trpo.trpo_of(asked, env, actor, critic)
    ours = {id(parameter) for module in (actor, critic) for parameter in module.parameters()}
    assert {id(parameter) for parameter in model.policy.parameters()} == ours

    batch = TensorDict({"observation": torch.randn(1, 256, 3)}, [1, 256])
    with torch.no_grad():
        critic(actor(batch))
    batch["advantage"] = batch["action"].clone()  # larger actions are better
    batch["value_target"] = batch["state_value"] + 1
    trpo.fill(model.rollout_buffer, batch)
    observation, action = batch["observation"][0], batch["action"][0]
    theirs = model.policy.get_distribution(observation).log_prob(action)
    torch.testing.assert_close(theirs.detach(), batch["action_log_prob"][0])
    torch.testing.assert_close(
        model.policy.predict_values(observation).detach(), batch["state_value"][0]
    )
    before = actor.get_dist(batch)
    error = (critic(batch.clone())["state_value"] - batch["value_target"]).square().mean()
    model.train()
    after = actor.get_dist(batch)
    assert 0.001 < torch.distributions.kl_divergence(after, before).mean() < asked.target_kl
    assert (after.mean > before.mean).float().mean() > 0.9
    assert (critic(batch)["state_value"] - batch["value_target"]).square().mean() < error


def test_bad_advantages_are_refused() -> None:
    batch = TensorDict({"advantage": torch.tensor([[[1.0], [torch.nan]]])}, [1, 2])
    with pytest.raises(NonFiniteDataError, match="advantages"):
        trpo.fill(None, batch)


def test_a_stopped_run_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    assert trpo.learn(*trpo.open_run(config(whole)))["exactness"] == "exact"
    fill, filled = trpo.fill, []

    def stop(*arguments: Any) -> None:
        fill(*arguments)
        filled.append(arguments)
        if len(filled) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trpo, "fill", stop)
        with pytest.raises(KeyboardInterrupt):
            trpo.learn(*trpo.open_run(config(run_dir, checkpoint_interval=1)))
    monkeypatch.setattr("sys.argv", ["trpo.py", "--resume", str(run_dir)])
    assert run_recipe(trpo.Config, trpo.__doc__, trpo.open_run, trpo.learn) == 0
    assert read_tables(run_dir) == read_tables(whole)
    assert load_policy(run_dir / "policy.pt").env_id == "Pendulum-v1"


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="comparators"):
        trpo.open_run(config(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
