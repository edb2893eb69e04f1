"""Where the paper's protocol differs from the library's defaults."""

from __future__ import annotations

import ppo_amber_builders as builders
import pytest
import torch
from ppo_amber_config import Config, resolve


@pytest.mark.parametrize(("protocol", "prior"), [("paper", 0.01), ("default", 0.0)])
def test_the_paper_s_observation_statistics_have_a_prior(protocol: str, prior: float) -> None:
    config = resolve(Config(env_id="Pendulum-v1", protocol=protocol))  # type: ignore[arg-type]
    env = builders.build_env(config)
    normalizer = builders.build_networks(config, env)[2]
    env.close()
    assert normalizer.count.item() == prior
    normalizer.update(torch.full((2048, 3), 1e6))
    # 0.01 frames at mean 0 and variance 1 before 2048 at 1e6, or none.
    spread = prior * 2048 / (2048 + prior) ** 2 * 1e12
    torch.testing.assert_close(normalizer.variance, torch.full((3,), spread).double(), rtol=1e-6, atol=1e-6)  # fmt: skip
