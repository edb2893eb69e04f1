"""Setups get the names that the study's directories have, from configurations alone."""

import pytest
from study.setups import Setup, pairs, swept

from tests.recipes.study.runs import SETUPS


def from_config(setup: str, **changed: object) -> Setup:
    rest = {
        "protocol": "paper",
        "scale_minibatch": True,
        "minibatches": "uniform",
        "learning_rate": 3e-4,
    }
    return Setup.from_config({"setup": setup, **SETUPS[setup], **rest, **changed})


@pytest.mark.parametrize(
    ("setup", "changed", "name", "paper"),
    [
        ("ppo", {}, "ppo", "ppo"),
        ("amber", {}, "amber", "amber"),
        ("mber", {}, "mber_l2", "mber_l2"),
        ("mber", {"num_batches": 8}, "mber_l8", "mber_l8"),
        ("amber", {"num_batches": 4}, "amber_l4", None),
        ("amber", {"drop_factor": 0.1}, "amber_drop0.1", None),
        ("amber", {"drop_factor": "inf"}, "amber_dropinf", None),
        ("mber", {"minibatches": "episodic"}, "mber_l2_episodic", None),
        ("ppo", {"clip_epsilon": 0.3000001}, "ppo_clip0.3000001", None),
    ],
)
def test_names(setup: str, changed: dict[str, object], name: str, paper: str | None) -> None:
    found = from_config(setup, **changed)
    assert found.name == name
    assert found.paper_name == paper


def test_the_papers_sweeps_have_a_family() -> None:
    assert from_config("ppo", clip_epsilon=0.7).paper_family == "ppo"
    assert from_config("mber", num_batches=6, clip_epsilon=0.2).paper_family == "mber_l6"
    assert from_config("amber", drop_factor=0.1).paper_family == "amber"
    assert from_config("mber", minibatches="episodic").paper_family is None


def test_an_ablation_names_its_reference() -> None:
    episodic = from_config("mber", minibatches="episodic")
    assert episodic.ablated_from == from_config("mber")
    assert from_config("mber").ablated_from is None


def test_pairs_are_the_comparisons_of_interest() -> None:
    setups = [
        from_config("ppo"),
        from_config("amber"),
        from_config("mber"),
        from_config("mber", minibatches="episodic"),
        from_config("ppo", clip_epsilon=0.4),
        from_config("amber", drop_factor=0.1),
        from_config("mber", clip_epsilon=0.2),
        from_config("mber", clip_epsilon=0.2, scale_minibatch=False),
        from_config("ppo", learning_rate=4e-5),
        from_config("amber", learning_rate=4e-5),
        from_config("ppo", frames_per_batch=1024),
        from_config("amber", frames_per_batch=1024, num_batches=16),
        from_config("amber", advantages="gae-v"),
        from_config("amber", advantages="gae-v", critic_on="all"),
        Setup("geppo"),
        Setup.from_config({"setup": "a2c", "gamma": 0.9}, ["gamma"]),
        Setup("amber", (("gamma", 0.9),)),
    ]
    assert set(pairs({setup.name: setup for setup in setups})) == {
        ("amber", "ppo"),
        ("amber", "ppo_clip0.4"),
        ("ppo_clip0.4", "ppo"),
        ("mber_l2", "ppo"),
        ("amber", "mber_l2"),
        ("amber_drop0.1", "amber"),
        ("mber_l2_clip0.2", "mber_l2"),
        ("ppo_n1024", "ppo"),
        ("amber_n1024_l16", "amber"),
        ("amber_n1024_l16", "ppo_n1024"),
        ("amber_n1024_l16", "ppo"),
        ("amber_gaev", "amber"),
        ("amber_gaev", "ppo"),
        ("amber_gaev_criticall", "amber_gaev"),
        ("amber_gaev_criticall", "amber"),
        ("amber_gaev_criticall", "ppo"),
        ("geppo", "ppo"),
        ("mber_l2", "mber_l2_episodic"),
        ("mber_l2_clip0.2", "mber_l2_clip0.2_m64"),
        ("ppo_lr4e-5", "ppo"),
        ("amber_lr4e-5", "amber"),
        ("amber_lr4e-5", "ppo_lr4e-5"),
        ("amber_gamma=0.9", "amber"),
        ("amber_gamma=0.9", "ppo"),
        ("a2c_gamma=0.9", "ppo"),
    }


def test_a_sweep_is_in_the_order_of_its_parameter() -> None:
    clips = [from_config("ppo", clip_epsilon=clip) for clip in (0.3, 0.7, 0.2)]
    setups = {setup.name: setup for setup in [*clips, from_config("amber")]}
    assert swept(list(setups), setups, "clip_epsilon") == {
        "ppo": ["ppo_clip0.2", "ppo", "ppo_clip0.7"]
    }
