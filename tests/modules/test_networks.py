"""Initialisation, keys and dtypes of the networks, and agreement between all modules that share a normaliser."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs import ExplorationType, set_exploration_type
from torchrl.objectives import ClipPPOLoss

from amber_trl.modules import ObservationNormalizer, categorical_actor, gaussian_actor, value_critic

BUILDERS: dict[str, Callable[..., Any]] = {
    "gaussian": lambda **arguments: gaussian_actor(3, 2, **arguments),
    "categorical": lambda **arguments: categorical_actor(3, 2, **arguments),
    "critic": lambda **arguments: value_critic(3, **arguments),
}
ACTORS = ["gaussian", "categorical"]


def linears(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def frames(*batch: int, dtype: torch.dtype = torch.float32) -> TensorDict:
    return TensorDict({"observation": torch.randn(*batch, 3).to(dtype)}, list(batch))


def minibatch(actor: Any) -> TensorDict:
    with torch.no_grad():
        td = actor(frames(16))
    return td.update({"advantage": torch.randn(16, 1), "value_target": torch.randn(16, 1)})


@pytest.mark.parametrize("name", BUILDERS)
def test_baseline_initialisation(name: str) -> None:
    layers = linears(BUILDERS[name]())
    last = 1.0 if name == "critic" else 0.01
    assert [tuple(layer.weight.shape) for layer in layers][:2] == [(64, 3), (64, 64)]
    for layer, norm in zip(layers, [1.0, 1.0, last], strict=True):
        rows = layer.weight.norm(dim=1)
        torch.testing.assert_close(rows, torch.full_like(rows, norm))
        assert not layer.bias.any()
    # Gaussian, not uniform: normalised rows of 64 have entries of variance 1/64, kurtosis near 3.
    entries = layers[1].weight.flatten()
    assert (entries.pow(4).mean() / entries.pow(2).mean() ** 2).item() == pytest.approx(3, abs=0.3)


def test_gaussian_starts_with_unit_deviation() -> None:
    actor = gaussian_actor(3, 2)
    td = actor(frames(5))
    assert torch.equal(td["scale"], torch.ones(5, 2))
    assert td["loc"].abs().max() < 0.1
    log_std = [value for name, value in actor.named_parameters() if name.endswith("log_std")]
    assert [tuple(value.shape) for value in log_std] == [(2,)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_seed_gives_one_network_in_every_dtype(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    reference = [layer.weight for layer in linears(value_critic(3))]
    normalizer = ObservationNormalizer(3, dtype=dtype)
    torch.manual_seed(1)
    twin = [layer.weight for layer in linears(value_critic(3, normalizer=normalizer))]
    for expected, actual in zip(reference, twin, strict=True):
        assert actual.dtype == dtype
        assert torch.equal(expected, actual.float())


def test_log_probability_is_that_of_the_gaussian() -> None:
    td = gaussian_actor(3, 2).double()(frames(40, 5))
    # log N(a; mu, 1) summed over two dimensions.
    distance = (td["action"] - td["loc"]).square().sum(-1)
    expected = -0.5 * distance - torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    torch.testing.assert_close(td["action_log_prob"], expected)
    assert td["action"].abs().max() > 2.0


def test_categorical_actions_are_integers() -> None:
    td = categorical_actor(3, 4)(frames(6, 50))
    assert td["action"].shape == td["action_log_prob"].shape == (6, 50)
    assert td["action"].dtype == torch.int64
    assert set(td["action"].flatten().tolist()) == {0, 1, 2, 3}
    expected = td["logits"].log_softmax(-1).gather(-1, td["action"].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(td["action_log_prob"], expected)


def test_one_hot_actions() -> None:
    td = categorical_actor(3, 4, one_hot=True)(frames(6))
    assert td["action"].shape == (6, 4)
    assert torch.equal(td["action"].sum(-1), torch.ones(6, dtype=torch.int64))
    expected = (td["logits"].log_softmax(-1) * td["action"]).sum(-1)
    torch.testing.assert_close(td["action_log_prob"], expected)


@pytest.mark.parametrize("name", ACTORS)
def test_samples_unless_the_mode_is_asked_for(name: str) -> None:
    actor, td = BUILDERS[name](), frames(50)
    assert not torch.equal(actor(td.clone())["action"], actor(td.clone())["action"])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        out = actor(td)
    mode = out["loc"] if name == "gaussian" else out["logits"].argmax(-1)
    assert torch.equal(out["action"], mode)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("with_normalizer", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("given_dtype", [torch.float32, torch.float64])
def test_network_dtype_wins(
    name: str, with_normalizer: bool, dtype: torch.dtype, given_dtype: torch.dtype
) -> None:
    normalizer = ObservationNormalizer(3) if with_normalizer else None
    module = BUILDERS[name](normalizer=normalizer).to(dtype)
    td = module(frames(4, 5, dtype=given_dtype))
    assert td["observation"].dtype == given_dtype
    for key in set(td.keys()) - {"observation"}:
        integer = name == "categorical" and key == "action"
        assert td[key].dtype == (torch.int64 if integer else dtype)
    assert normalizer is None or normalizer.dtype == dtype


@pytest.mark.parametrize("name", ACTORS)
def test_renamed_and_nested_keys(name: str) -> None:
    keys = {"in_key": ("agent", "seen"), "action_key": ("agent", "act")}
    td = TensorDict({"agent": {"seen": torch.randn(4, 3)}}, [4])
    out = BUILDERS[name](**keys)(td.clone())
    assert ("agent", "act") in out.keys(True)
    assert ("agent", "act_log_prob") in out.keys(True)
    actor = BUILDERS[name](**keys, log_prob_key=("agent", "lp"))
    assert actor.log_prob_keys == [("agent", "lp")]
    assert actor(td)["agent", "lp"].shape == (4,)
    critic = value_critic(3, in_key=("agent", "seen"), out_key=("agent", "value"))
    assert critic(td)["agent", "value"].shape == (4, 1)


def test_hidden_sizes() -> None:
    shapes = [tuple(layer.weight.shape) for layer in linears(value_critic(3, hidden_sizes=(5,)))]
    assert shapes == [(5, 3), (1, 5)]
    linear = value_critic(3, hidden_sizes=())
    assert [tuple(layer.weight.shape) for layer in linears(linear)] == [(1, 3)]
    assert not any(isinstance(module, nn.Tanh) for module in linear.modules())


def test_network_reads_standardised_observations() -> None:
    normalizer = ObservationNormalizer(3)
    critic = value_critic(3, normalizer=normalizer)
    normalizer.update(torch.randn(100, 3) * 4 + 7)
    plain = value_critic(3)
    for target, source in zip(plain.parameters(), critic.parameters(), strict=True):
        target.data.copy_(source.data)
    td = frames(6)
    expected = plain(TensorDict({"observation": normalizer(td["observation"])}, [6]))
    assert torch.equal(critic(td)["state_value"], expected["state_value"])


@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize("name", ACTORS)
def test_a_loss_sees_updates_and_no_extra_parameters(name: str, functional: bool) -> None:
    normalizer = ObservationNormalizer(3)
    actor = BUILDERS[name](normalizer=normalizer)
    critic = value_critic(3, normalizer=normalizer)
    batch = minibatch(actor)
    loss = ClipPPOLoss(actor, critic, functional=functional)
    parameters = list(loss.parameters())
    assert len({id(value) for value in parameters}) == len(parameters)
    expected = [*actor.parameters(), *critic.parameters()]
    assert {value.data_ptr() for value in parameters} == {value.data_ptr() for value in expected}

    def losses(module: ClipPPOLoss) -> list[Tensor]:
        out = module(batch)
        return [out["loss_objective"], out["loss_critic"], out["kl_approx"]]

    before = losses(loss)
    normalizer.update(torch.randn(100, 3) * 5 + 2)
    after = losses(loss)
    fresh = losses(ClipPPOLoss(actor, critic, functional=functional))
    assert not torch.equal(before[1], after[1])
    assert not torch.equal(before[2], after[2])
    assert all(torch.equal(a, b) for a, b in zip(after, fresh, strict=True))


@pytest.mark.parametrize("name", BUILDERS)
def test_refuses_other_observations(name: str) -> None:
    module = BUILDERS[name]()
    with pytest.raises(ValueError, match="last dimension must be 3"):
        module(TensorDict({"observation": torch.zeros(2, 4)}, [2]))
    with pytest.raises(TypeError, match="floating dtype is needed"):
        module(TensorDict({"observation": torch.zeros(2, 3, dtype=torch.int64)}, [2]))


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_sizes": (64, 0)}, r"hidden_sizes\[1\]=0"),
        ({"normalizer": nn.Identity()}, "normalizer is a Identity"),
        ({"normalizer": ObservationNormalizer(4)}, "observation_size=3"),
    ],
)
def test_refuses_bad_arguments(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        BUILDERS[name](**arguments)


def test_refuses_bad_sizes() -> None:
    with pytest.raises(ValueError, match="observation_size=0"):
        value_critic(0)
    with pytest.raises(TypeError, match=r"action_size=1\.5"):
        gaussian_actor(3, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_actions=0"):
        categorical_actor(3, 0)


def test_an_activation_is_chosen_by_name() -> None:
    critic = value_critic(3, activation="elu")
    kinds = {type(module) for module in critic.modules()}
    assert torch.nn.ELU in kinds
    assert torch.nn.Tanh not in kinds
    unknown: Any = "sine"
    with pytest.raises(ValueError, match="activation='sine'"):
        value_critic(3, activation=unknown)
