"""Log-probabilities of stored actions: as a distribution gives them, and as recorded."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    set_composite_lp_aggregate,
)
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal
from torchrl.envs.utils import ExplorationType, set_exploration_type

_ONE_PER_FRAME = (
    "expected one floating number per frame, the joint log-probability of the whole action: for "
    "several dimensions use IndependentNormal, not Normal; for actions [agents, dimensions] use "
    'IndependentNormal with distribution_kwargs={"event_dim": 2}'
)


@contextmanager
def evaluation(actor: nn.Module) -> Iterator[None]:
    """Eval mode without sampling; restores each module's own mode afterwards."""
    training = [module for module in actor.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            yield
    finally:
        for module in training:
            module.training = True


def joint_log_prob(dist: Distribution, frames: TensorDictBase, keys: Sequence[NestedKey]) -> Tensor:
    """Log-probability of the stored actions, ``[frames]``."""
    if isinstance(dist, CompositeDistribution):
        for name, head in dist.dists.items():
            # Sums over a Normal's dimensions, not over the agents of an IndependentNormal.
            if head.event_shape and len(head.batch_shape) > 1:
                raise ValueError(
                    f"the actor's log-probability of {name!r} has shape {tuple(head.batch_shape)} "
                    f"for {len(frames)} frames: {_ONE_PER_FRAME}"
                )
        with set_composite_lp_aggregate(False):
            heads = dist.log_prob(frames.select(*keys))
        return sum_of_heads(heads.values(True, True), len(frames))
    action = frames.get(keys[0])
    # A distribution would silently broadcast an action of another size.
    if dist.event_shape and action.shape[-len(dist.event_shape) :] != dist.event_shape:
        raise ValueError(
            f"{keys[0]} of shape {tuple(action.shape[1:])} per frame: the actor's "
            f"{type(dist).__name__} is over actions of shape {tuple(dist.event_shape)}"
        )
    log_prob = dist.log_prob(action)
    check_one_per_frame("the actor's log-probability", log_prob, len(frames))
    return log_prob.reshape(-1)


def sum_of_heads(log_probs: Iterable[Tensor], frames: int) -> Tensor:
    """The joint log-probability ``[frames]`` of the heads of an action, each ``[frames, ...]``."""
    return torch.stack([head.reshape(frames, -1).sum(-1) for head in log_probs]).sum(0)


def log_ratio_of_dimensions(
    dist: Distribution,
    frames: TensorDictBase,
    action_key: NestedKey,
    gaussian_keys: Sequence[NestedKey],
    needed_by: str,
) -> Tensor:
    """Log-ratios ``[frames, D]`` of each action dimension, relative to the stored mean and deviation."""
    normal = dist.base_dist if isinstance(dist, Independent) else dist
    if not isinstance(normal, Normal):
        raise _not_gaussian(type(dist), needed_by)
    if missing := [key for key in gaussian_keys if frames.get(key, None) is None]:
        raise KeyError(
            f"{missing} missing, which {needed_by} reads: keep the actor's mean and deviation in storage "
            "(keys=), and name them if they have other names (set_keys(loc=..., scale=...))"
        )
    action = frames.get(action_key)
    loc, scale = (frames.get(key) for key in gaussian_keys)
    for key, value in zip(gaussian_keys, (loc, scale), strict=True):
        if value.shape != action.shape:
            raise ValueError(
                f"{key!r} of shape {tuple(value.shape)} for actions of shape "
                f"{tuple(action.shape)}: store mean and deviation of each action dimension"
            )
    behaviour = Normal(loc, scale, validate_args=False)
    log_ratio = normal.log_prob(action) - behaviour.log_prob(action)
    return log_ratio.reshape(*frames.shape, -1)


def check_gaussian(actor: nn.Module, needed_by: str) -> None:
    """Raise ``ValueError`` if the actor's declared distribution class is not Gaussian."""
    for module in actor.modules():
        if isinstance(module, ProbabilisticTensorDictModule):
            kind = module.distribution_class
            if isinstance(kind, type) and not issubclass(kind, Normal | Independent):
                raise _not_gaussian(kind, needed_by)


def _not_gaussian(kind: type, needed_by: str) -> ValueError:
    return ValueError(
        f"{needed_by} needs a Gaussian actor (Normal or IndependentNormal), got {kind.__name__}: "
        "choose another loss or staleness metric, or such an actor"
    )


def check_one_per_frame(name: object, log_prob: Tensor, frames: int) -> None:
    """Raise ``ValueError`` unless there is one floating number per frame."""
    if not log_prob.is_floating_point() or log_prob.numel() != frames:
        raise ValueError(
            f"{name} of shape {tuple(log_prob.shape)} and dtype {log_prob.dtype} for {frames} "
            f"frames: {_ONE_PER_FRAME}"
        )


def check_evaluable(actor: nn.Module) -> None:
    """Raise ``ValueError`` if a stored action's log-probability needs more than its own frame."""
    modules = [module for module in actor.modules() if isinstance(module, TensorDictModuleBase)]
    read = {unravel_key(key) for module in modules for key in module.in_keys}
    written = {unravel_key(key) for module in modules for key in module.out_keys}
    if sampled := read & {unravel_key(key) for key in getattr(actor, "dist_sample_keys", ())}:
        raise ValueError(
            f"actor reads {sorted(sampled, key=str)}, which it samples itself, so the log-probability "
            "of a stored action would depend on another sample; give an actor without latent "
            "samples"
        )
    if carried := {key for key in read if unravel_key(("next", key)) in written}:
        raise ValueError(
            f"actor is recurrent: it carries {sorted(carried, key=str)} from frame to frame, so the "
            "log-probability of a stored action would depend on another policy's memory; give "
            "a feed-forward actor"
        )


def keys_read(module: TensorDictModuleBase) -> list[NestedKey]:
    """The keys that a module needs as input: its ``in_keys``, minus those that its parts write.

    ``in_keys`` alone contains ``params`` if a part of the actor writes ``("params", "loc")``.
    """
    keys = [unravel_key(key) for key in module.in_keys]
    if not isinstance(module, TensorDictSequential):
        return keys
    needed: set[NestedKey] = set()
    written: list[NestedKey] = []
    for part in module.module.children():
        needed |= {key for key in keys_read(part) if not any(_overlap(key, o) for o in written)}
        written += [unravel_key(key) for key in part.out_keys]
    return [key for key in keys if key in needed]


def _overlap(one: NestedKey, other: NestedKey) -> bool:
    """Whether two keys are equal, or one is an entry of the other."""
    paths = ((key,) if isinstance(key, str) else key for key in (one, other))
    return all(a == b for a, b in zip(*paths, strict=False))


def forked_generators(device: torch.device) -> AbstractContextManager[None]:
    """Restores the generators of the CPU and of ``device`` afterwards; starts CUDA on no other device."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def dtype_of(network: nn.Module) -> torch.dtype:
    """The dtype of a network's floating parameters; torch's default if it has none."""
    dtypes = (p.dtype for p in network.parameters() if p.is_floating_point())
    return next(dtypes, torch.get_default_dtype())


def device_of(actor: nn.Module) -> torch.device | None:
    """The device of an actor; ``None`` if it has neither parameters nor buffers."""
    for tensor in (*actor.parameters(), *actor.buffers()):
        return tensor.device
    return None
