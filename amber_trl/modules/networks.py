"""Actor and critic networks of the AMBER paper's baseline, as TorchRL modules."""

from collections.abc import Sequence
from typing import Literal, cast

import torch
from tensordict.nn import InteractionType, TensorDictModule
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torch.nn.utils import skip_init
from torchrl.modules import IndependentNormal, OneHotCategorical, ProbabilisticActor, ValueOperator

from amber_trl._checks import check_integer
from amber_trl.modules.normalizer import ObservationNormalizer, check_observation

Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]

_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}


def gaussian_actor(
    observation_size: int,
    action_size: int,
    *,
    normalizer: ObservationNormalizer | None = None,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: Activation = "tanh",
    in_key: NestedKey = "observation",
    action_key: NestedKey = "action",
    log_prob_key: NestedKey | None = None,
) -> ProbabilisticActor:
    r"""Builds a Gaussian policy with a state-independent standard deviation.

    .. math::
            \pi(a \mid s) = \prod_d \mathcal N(a_d; \mu_d(\hat s), e^{\rho_d}), \qquad \rho_d = 0
            \text{ at first}

    The mean is a tanh network, initialised as in the baseline of the AMBER paper (arXiv 1710.04423;
    OpenAI baselines' ppo1): Gaussian weights scaled to norm 1 per output unit, or 0.01 in the last
    layer, and zero biases. Weights are drawn from torch's global CPU generator and are the same for
    every device and dtype. Device and dtype are those of the normaliser, or else torch's defaults.
    Actions are not bounded; the environment clips them.

    Reads ``in_key`` (``[*batch, observation_size]``, any floating dtype). Writes ``loc`` and
    ``scale`` (``[*batch, action_size]``), the action (the same shape) and its log-probability
    (``[*batch]``), in the network's dtype. It samples unless
    ``torchrl.envs.set_exploration_type`` selects the mean.

    Args:
        observation_size: length of an observation, at least 1.
        action_size: number of action dimensions, at least 1.
        normalizer: statistics that standardise observations, of size ``observation_size``. It becomes
            a submodule and is not copied: give the critic the same object. None uses raw
            observations.
        hidden_sizes: widths of the hidden layers, each at least 1; may be empty.
        activation: activation of the hidden layers: ``tanh`` (the paper's), ``relu``, ``elu``, ``gelu`` or
            ``silu``.
        in_key: key of the observation.
        action_key: key of the action.
        log_prob_key: key of the action's log-probability; default: TorchRL's name for the action key,
            such as ``action_log_prob``.

    Returns:
        A ``torchrl.modules.ProbabilisticActor`` over ``IndependentNormal``.

    Raises:
        TypeError: a size is not an integer, or ``normalizer`` is not an
            :class:`ObservationNormalizer`.
        ValueError: a size is below 1, the normaliser has another size, or the activation is
            unknown.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.modules import gaussian_actor
        >>> actor = gaussian_actor(observation_size=3, action_size=2)
        >>> frames = actor(TensorDict({"observation": torch.randn(4, 3)}, [4]))
        >>> frames["action"].shape, frames["action_log_prob"].shape
        (torch.Size([4, 2]), torch.Size([4]))
    """
    check_integer("action_size", action_size)
    mean = _network(observation_size, action_size, 0.01, hidden_sizes, activation, normalizer)
    module = TensorDictModule(
        _GaussianNetwork(mean, action_size), in_keys=[in_key], out_keys=["loc", "scale"]
    )
    return _actor(module, IndependentNormal, action_key, log_prob_key)


def categorical_actor(
    observation_size: int,
    num_actions: int,
    *,
    normalizer: ObservationNormalizer | None = None,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: Activation = "tanh",
    in_key: NestedKey = "observation",
    action_key: NestedKey = "action",
    log_prob_key: NestedKey | None = None,
    one_hot: bool = False,
) -> ProbabilisticActor:
    r"""Builds a policy over ``num_actions`` discrete actions.

    .. math::
        \pi(a \mid s) \propto e^{f_a(\hat s)}

    The logits :math:`f` are a tanh network initialised as in :func:`gaussian_actor`, so that the
    initial policy is nearly uniform.

    Reads ``in_key`` (``[*batch, observation_size]``, any floating dtype). Writes ``logits``
    (``[*batch, num_actions]``), the action (int64 ``[*batch]``, or ``[*batch, num_actions]``
    if ``one_hot``) and its log-probability (``[*batch]``).

    With ``one_hot``, actions are written in the form that a ``GymEnv`` expects by default, instead of
    as integers, which :func:`amber_trl.envs.make_env` expects. All other arguments and errors are those
    of :func:`gaussian_actor`.

    Returns:
        A ``torchrl.modules.ProbabilisticActor`` over ``Categorical`` or ``OneHotCategorical``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.modules import categorical_actor
        >>> actor = categorical_actor(observation_size=4, num_actions=2)
        >>> frames = actor(TensorDict({"observation": torch.randn(5, 4)}, [5]))
        >>> frames["action"].shape, frames["action"].dtype
        (torch.Size([5]), torch.int64)
    """
    check_integer("num_actions", num_actions)
    network = _network(observation_size, num_actions, 0.01, hidden_sizes, activation, normalizer)
    module = TensorDictModule(network, in_keys=[in_key], out_keys=["logits"])
    distribution = OneHotCategorical if one_hot else Categorical
    return _actor(module, distribution, action_key, log_prob_key)


def value_critic(
    observation_size: int,
    *,
    normalizer: ObservationNormalizer | None = None,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: Activation = "tanh",
    in_key: NestedKey = "observation",
    out_key: NestedKey = "state_value",
) -> ValueOperator:
    """Builds a state-value network, which shares no weights with the actor.

    It is a tanh network initialised as in :func:`gaussian_actor`, but with weights of norm 1 per output
    unit in the last layer too.

    Reads ``in_key`` (``[*batch, observation_size]``, any floating dtype) and writes ``out_key``
    (``[*batch, 1]``, in units of the return). Arguments and errors are those of
    :func:`gaussian_actor`.

    Returns:
        A ``torchrl.modules.ValueOperator``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.modules import value_critic
        >>> critic = value_critic(observation_size=3)
        >>> critic(TensorDict({"observation": torch.randn(4, 3)}, [4]))["state_value"].shape
        torch.Size([4, 1])
    """
    network = _network(observation_size, 1, 1.0, hidden_sizes, activation, normalizer)
    return ValueOperator(network, in_keys=[in_key], out_keys=[out_key])


class _Network(nn.Module):
    """A network over standardised observations of any floating dtype."""

    def __init__(self, layers: nn.Sequential, normalizer: ObservationNormalizer | None) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.layers = layers

    def forward(self, observation: Tensor) -> Tensor:
        first = cast(nn.Linear, self.layers[0])
        if self.normalizer is None:
            check_observation(observation, first.in_features)
        else:
            observation = self.normalizer(observation)
        output: Tensor = self.layers(observation.to(first.weight.dtype))
        return output


class _GaussianNetwork(nn.Module):
    """The mean from a network, the standard deviation from a parameter."""

    def __init__(self, network: _Network, action_size: int) -> None:
        super().__init__()
        self.network = network
        first = cast(nn.Linear, network.layers[0])
        self.log_std = nn.Parameter(first.weight.new_zeros(action_size))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        loc = self.network(observation)
        return loc, self.log_std.exp().expand_as(loc)


def _network(
    in_size: int,
    out_size: int,
    out_norm: float,
    hidden_sizes: Sequence[int],
    activation: Activation,
    normalizer: ObservationNormalizer | None,
) -> _Network:
    check_integer("observation_size", in_size)
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation={activation!r}: choose one of {list(_ACTIVATIONS)}")
    for index, size in enumerate(hidden_sizes):
        check_integer(f"hidden_sizes[{index}]", size)
    if normalizer is None:
        dtype, device = torch.get_default_dtype(), torch.get_default_device()
    elif not isinstance(normalizer, ObservationNormalizer):
        raise TypeError(
            f"normalizer is a {type(normalizer).__name__}: pass an ObservationNormalizer or None"
        )
    elif normalizer.size != in_size:
        raise ValueError(
            f"observation_size={in_size} given with a normalizer of size {normalizer.size}: they "
            "must be equal"
        )
    else:
        dtype, device = normalizer.dtype, normalizer.mean.device
    sizes = [in_size, *hidden_sizes, out_size]
    norms = [*(1.0 for _ in hidden_sizes), out_norm]
    layers: list[nn.Module] = []
    for fan_in, fan_out, norm in zip(sizes[:-1], sizes[1:], norms, strict=True):
        layers += [_linear(fan_in, fan_out, norm), _ACTIVATIONS[activation]()]
    return _Network(nn.Sequential(*layers[:-1]).to(device, dtype), normalizer)


def _linear(fan_in: int, fan_out: int, norm: float) -> nn.Linear:
    # Always float64 on the CPU, so that a seed gives the same network for every dtype and device.
    layer = skip_init(nn.Linear, fan_in, fan_out, dtype=torch.float64, device="cpu")
    with torch.no_grad():
        layer.weight.normal_()
        layer.weight.mul_(norm / layer.weight.norm(dim=1, keepdim=True))
        layer.bias.zero_()
    return layer


def _actor(
    module: TensorDictModule,
    distribution: type[Distribution],
    action_key: NestedKey,
    log_prob_key: NestedKey | None,
) -> ProbabilisticActor:
    named = {} if log_prob_key is None else {"log_prob_key": log_prob_key}
    return ProbabilisticActor(
        module,
        in_keys=module.out_keys,
        out_keys=[action_key],
        distribution_class=distribution,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
        **named,
    )
