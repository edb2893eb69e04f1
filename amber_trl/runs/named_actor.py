"""Actors built by a function that the caller names."""

import inspect

import torch
from tensordict.nn import ProbabilisticTensorDictSequential
from torchrl.envs import EnvBase

from amber_trl._actors import evaluation, forked_generators, keys_read
from amber_trl._checks import import_named
from amber_trl.modules import ObservationNormalizer


def named_actor(
    name: str, env: EnvBase, normalizer: ObservationNormalizer
) -> ProbabilisticTensorDictSequential:
    """Calls the function ``module:function``, which builds an actor from an environment's specs.

    It is called as ``function(observation_spec, action_spec, normalizer=normalizer)`` with the specs of
    one environment, and returns a feed-forward ``torchrl.modules.ProbabilisticActor``. The actor must
    read the environment's observation, and write its action and (with ``return_log_prob=True``) the
    action's log-probability. Observations are raw unless the actor applies the normaliser first, which
    the critic shares and the loop updates.

    Args:
        name: as in :func:`import_named`, with the same errors.
        env: the environment, which is not stepped.
        normalizer: running statistics of the observations.

    Returns:
        The actor, on the normaliser's device.

    Raises:
        TypeError: if the function returns an object without ``get_dist``.
        ValueError: if the actor reads or writes other keys, or writes actions of another shape.

    Examples:
        >>> from amber_trl.envs import make_env
        >>> from amber_trl.modules import ObservationNormalizer, gaussian_actor
        >>> from amber_trl.runs import named_actor
        >>> def wide_actor(observation_spec, action_spec, *, normalizer):  # in mynetworks.py
        ...     sizes = observation_spec["observation"].shape[-1], action_spec.shape[-1]
        ...     return gaussian_actor(*sizes, normalizer=normalizer, hidden_sizes=(256,))
        >>> import sys, types
        >>> sys.modules["mynetworks"] = types.SimpleNamespace(wide_actor=wide_actor)
        >>> env = make_env("Pendulum-v1", num_envs=2)
        >>> named_actor("mynetworks:wide_actor", env, ObservationNormalizer(3)).in_keys
        ['observation']
    """
    function = import_named("actor", name)
    specs = env.observation_spec_unbatched, env.action_spec_unbatched
    try:
        inspect.signature(function).bind(*specs, normalizer=normalizer)
    except TypeError as error:
        raise TypeError(
            f"actor={name!r} is not a function(observation_spec, action_spec, *, normalizer): {error}"
        ) from error
    actor = function(*specs, normalizer=normalizer)
    if not callable(getattr(actor, "get_dist", None)):
        raise TypeError(
            f"actor={name!r} made a {type(actor).__name__}: return a torchrl.modules."
            "ProbabilisticActor"
        )
    device = normalizer.mean.device
    actor, observed = actor.to(device), env.observation_spec.zero().to(device)
    if unknown := [key for key in keys_read(actor) if key not in observed.keys(True, True)]:
        raise ValueError(
            f"actor={name!r} reads {unknown}, but the environment gives {[*observed.keys(True, True)]}"
        )
    with forked_generators(device), torch.no_grad(), evaluation(actor):
        frames = actor(observed)
    needed = (env.action_key, *actor.log_prob_keys)
    if missing := [key for key in needed if frames.get(key, None) is None]:
        raise ValueError(
            f"actor={name!r} does not write {missing}: name the action {env.action_key!r} in "
            "out_keys, and pass return_log_prob=True"
        )
    if (shape := frames[env.action_key].shape) != env.action_spec.shape:
        raise ValueError(
            f"actor={name!r} writes actions of shape {list(shape)}, but {len(frames)} environments "
            f"take {list(env.action_spec.shape)}"
        )
    return actor
