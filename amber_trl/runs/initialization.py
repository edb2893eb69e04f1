"""Starts a new training from the networks of another run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from amber_trl.checkpoints import CheckpointError
from amber_trl.checkpoints.checkpoint_file import read_states
from amber_trl.runs.policies import find_policy


def initialize_from(run: str | os.PathLike[str], parts: Mapping[str, Any]) -> None:
    """Loads another run's networks, with their statistics and the reward scale.

    The networks are everything that the modules in ``parts`` store in submodules; everything else stays
    unchanged. Call it before the collector is built, which may copy the actor.

    Args:
        run: run directory, or one of its checkpoints.
        parts: the parts of a checkpoint by name, as in :class:`TrainingRun`. The reward scale is that of
            the :class:`~amber_trl.modules.RewardScaler` under the name ``reward_scaler``.

    Raises:
        FileNotFoundError: if the run does not exist or has no checkpoint.
        ValueError: if ``run`` is another file, such as ``policy.pt``.
        CheckpointError: if the networks do not fit, or only one of the two trainings scales rewards.

    Examples:
        >>> from amber_trl.runs import initialize_from
        >>> initialize_from("runs/halfcheetah", {"loss": loss})  # doctest: +SKIP
    """
    if not Path(run).exists():
        raise FileNotFoundError(f"init_from={str(run)!r}: there is no such run")
    file = find_policy(run) if Path(run).is_dir() else Path(run)
    if file.suffix != ".ckpt":
        raise ValueError(f"init_from={str(run)!r}: give a run directory, or one of its checkpoints")
    _, states = read_states(file, "cpu")
    for name, part in parts.items():
        if not isinstance(part, nn.Module):
            continue
        saved, own = states.get(name, {}), part.state_dict()
        # A name without a dot is an option, such as a loss's clip_epsilon.
        try:
            part.load_state_dict(
                {key: value for key, value in own.items() if "." not in key}
                | {key: value for key, value in saved.items() if "." in key}
            )
        except RuntimeError as error:
            shapes = (
                f"{key} {list(saved[key].shape)} there, {list(value.shape)} here"
                for key, value in own.items()
                if key in saved and saved[key].shape != value.shape
            )
            raise CheckpointError(
                f"init_from={str(run)!r} has another task, network or recipe: "
                f"{next(shapes, f'{name} has other parameters')}"
            ) from error
    scaler, scale = parts.get("reward_scaler"), states.get("reward_scaler")
    if (scaler is None) != (scale is None):
        theirs, ours = (" not" * (part is None) for part in (scale, scaler))
        raise CheckpointError(
            f"init_from={str(run)!r}: its rewards were{theirs} scaled, and so were the values that "
            f"its critic learnt, but those of this run are{ours}: train with reward_scaling as "
            "that run did"
        )
    if scaler is not None and scale is not None:
        # Without the sums of the other run's unfinished episodes.
        scaler.load_state_dict({**scale, "returns": scaler.returns})
