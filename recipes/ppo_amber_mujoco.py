"""Train PPO, PPO-MBER or PPO-AMBER on a Gymnasium environment.

    python recipes/ppo_amber_mujoco.py --env-id Pendulum-v1 --setup amber
    python recipes/ppo_amber_mujoco.py --env-id HalfCheetah-v5 --setup ppo --seed 3
    python recipes/ppo_amber_mujoco.py --env-id Pendulum-v1 --setup amber --protocol paper
    python recipes/ppo_amber_mujoco.py --env-id Hopper-v5 --checkpoint-interval 20 --run-dir runs/hopper
    python recipes/ppo_amber_mujoco.py --resume runs/hopper

`ppo` learns from the newest batch, `mber` from the last two, `amber` from those of the last eight
that are still close to the current policy (Han & Sung, arXiv 1710.04423). What to expect after a
million frames, with `amber`: a last-100 return near -150 on Pendulum-v1. The run directory then
holds config.json, versions.json, episodes.csv, iterations.csv, timing.csv, policy.pt, summary.json
and checkpoints. Ctrl-C or SIGTERM finishes the iteration, saves a checkpoint to resume from, and
exits with code 130 or 143.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import random
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import torch
import tyro
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.checkpoint import GlobalRNGState
from torchrl.collectors import BaseCollector, Collector
from torchrl.data import Categorical
from torchrl.envs import EnvBase
from torchrl.objectives.value import GAE
from tqdm import tqdm

from amber_trl.collectors import GymCollector
from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
)
from amber_trl.envs import make_env
from amber_trl.errors import NonFiniteDataError
from amber_trl.modules import ObservationNormalizer, categorical_actor, gaussian_actor, value_critic
from amber_trl.objectives import AmberPPOLoss
from amber_trl.training import (
    CheckpointError,
    Checkpoints,
    CollectionState,
    LinearSchedule,
    NonFiniteError,
    PolicyRecord,
    Range,
    RunDirectory,
    StopOnInterrupt,
    TrainingLog,
    UpdateStep,
    check_fields,
    should_compile,
)
from amber_trl.transforms import ISStalenessFilter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to train, and how. Where a default is None, the text says what it stands for."""

    env_id: str = "HalfCheetah-v5"
    """Gymnasium id of an environment with a Box observation and a Box or Discrete action."""
    setup: Literal["ppo", "mber", "amber"] = "amber"
    """ppo: the newest batch. mber: all stored, by default two. amber: those of eight not stale."""
    protocol: Literal["default", "paper"] = "default"
    """default: 8 environments, time limits bootstrapped. paper: 1 environment, limits terminal."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Seeds networks, environments, actions and minibatches."""
    total_frames: Annotated[int | None, Range(1)] = None
    """Frames to train for, towards which everything is annealed; the last batch is made whole
    (1 000 000; smoke: 2560)."""
    device: str = "cpu"
    """Torch device of networks and storage."""
    collector: Literal["fast", "torchrl"] | None = None
    """fast: amber_trl's GymCollector, with a copy of the actor on the CPU where the networks are
    elsewhere. torchrl: TorchRL's Collector, on the networks' device. Both collect the same frames
    (fast)."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the update step and, in runs with total_frames / num_envs of at least 500 000, the
    actor of the fast collector. auto: in runs of at least 100 000 frames, if a compiler works."""
    num_threads: Annotated[int, Range(1)] = 1
    """Threads that torch uses; for networks of this size one is fastest."""
    run_dir: Path | None = None
    """Where the run's files go (runs/ENV_ID-SETUP-seedSEED)."""
    overwrite: bool = False
    """Replace a run that the directory already holds."""
    checkpoint_interval: Annotated[int | None, Range(1)] = None
    """Iterations between checkpoints (None: only one, at the end). Kept: the last two, the best."""
    resume: Path | None = None
    """Directory of a run to go on with, from its newest sound checkpoint and with its options."""
    tensorboard: bool = False
    """Log to TensorBoard too, in the run directory."""
    progress: bool = True
    """Show a progress bar."""
    smoke: bool = False
    """A few short iterations that exercise everything within 20 seconds, and learn nothing."""

    num_envs: Annotated[int | None, Range(1)] = None
    """Environments stepped in one process (by the protocol: 8 or 1)."""
    time_limits: Literal["bootstrap", "terminal"] | None = None
    """Whether the value goes on beyond a time limit (by the protocol: bootstrap or terminal)."""
    frames_per_batch: Annotated[int | None, Range(1)] = None
    """N, frames collected per iteration, by all environments together (2048; smoke: 256)."""
    num_batches: Annotated[int | None, Range(1)] = None
    """L, batches kept, the newest included (by the setup: ppo 1, mber 2, amber 8)."""
    drop_factor: Annotated[float | None, Range(0, infinite=True)] = None
    """Staleness beyond which a batch is not used, in [0, inf], annealed to 0 (amber: 0.25)."""
    staleness_metric: Literal[
        "mean_abs_deviation", "per_dimension", "kl", "effective_sample_size", "age"
    ] = "mean_abs_deviation"
    """How a batch's staleness is measured; the default is the paper's R' - 1."""
    epochs: Annotated[int | None, Range(1)] = None
    """Passes over the batches in use, per iteration (10; smoke: 2)."""
    minibatch_size: Annotated[int, Range(1)] = 64
    """Frames of a minibatch per batch in use; must divide frames_per_batch."""
    scale_minibatch: bool = True
    """Let the minibatch grow with the batches in use; else the number of updates grows."""
    minibatches: Literal["uniform", "episodic"] = "uniform"
    """Frames of a minibatch: drawn uniformly, or one contiguous run of one environment."""
    learning_rate: Annotated[float, Range(0, above=True)] = 3e-4
    """Adam's step size, annealed to 0."""
    clip_epsilon: Annotated[float | None, Range(0, 1, above=True)] = None
    """Clip range, annealed to 0 (by the setup: ppo 0.3, mber and amber 0.4)."""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """Discount per frame."""
    gae_lambda: Annotated[float, Range(0, 1)] = 0.95
    """GAE's lambda."""
    normalize_advantage: Literal["batch", "minibatch", "none"] = "batch"
    """Standardise advantages once over the batch that is stored, in each minibatch, or not."""
    critic_coeff: Annotated[float, Range(0)] = 1.0
    """Weight of the value loss."""
    entropy_coeff: Annotated[float, Range(0)] = 0.0
    """Weight of an entropy bonus; 0 is none."""
    max_grad_norm: Annotated[float | None, Range(0, above=True)] = None
    """Norm beyond which the gradient is rescaled (None: never)."""
    hidden_sizes: Annotated[tuple[int, ...], Range(1)] = (64, 64)
    """Widths of the hidden layers of actor and critic."""


@dataclass(frozen=True, kw_only=True)
class EffectiveConfig(Config):
    """A configuration in which nothing is left open; what a run's config.json holds."""

    run_dir: Path
    total_frames: int
    num_envs: int
    time_limits: Literal["bootstrap", "terminal"]
    frames_per_batch: int
    num_batches: int
    epochs: int
    clip_epsilon: float
    collector: Literal["fast", "torchrl"]
    compiled: bool


_SETUPS: dict[str, dict[str, Any]] = {
    "ppo": {"num_batches": 1, "clip_epsilon": 0.3},
    "mber": {"num_batches": 2, "clip_epsilon": 0.4},
    "amber": {"num_batches": 8, "clip_epsilon": 0.4, "drop_factor": 0.25},
}
_PROTOCOLS: dict[str, dict[str, Any]] = {
    "default": {"num_envs": 8, "time_limits": "bootstrap"},
    "paper": {"num_envs": 1, "time_limits": "terminal"},
}
_LENGTHS: dict[bool, dict[str, Any]] = {
    False: {"total_frames": 1_000_000, "frames_per_batch": 2048, "epochs": 10},
    True: {"total_frames": 2560, "frames_per_batch": 256, "epochs": 2},
}
_COMPILE_ACTOR_FROM_STEPS = 500_000
"""Calls of the actor from which compiling it pays: twenty seconds, for 50 microseconds of each."""


def resolve(config: Config) -> EffectiveConfig:
    """Fills in what was left to setup, protocol and smoke; refuses what cannot be, by name."""
    check_fields(config)
    _check_device(config.device)
    if config.resume is not None:
        return _resolve_resumed(config, saved_config(config.resume))
    values = _SETUPS[config.setup] | _PROTOCOLS[config.protocol] | _LENGTHS[config.smoke]
    task = config.env_id.replace("/", "-").replace(":", "-")
    values["run_dir"] = Path("runs", f"{task}-{config.setup}-seed{config.seed}")
    values["collector"] = "fast"
    given = {name: value for name, value in asdict(config).items() if value is not None}
    values |= given
    effective = EffectiveConfig(**{"compiled": False, **values})  # open_run decides
    _check_combinations(effective)
    return effective


def saved_config(run_dir: Path) -> EffectiveConfig:
    """The configuration to resume a run with: its own, wherever its directory is now."""
    path = run_dir / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"resume={str(run_dir)!r}: there is no config.json of a run in it")
    try:
        saved = dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} holds no configuration ({error}): restore it") from error
    if differing := {field.name for field in fields(EffectiveConfig)} ^ saved.keys():
        raise ValueError(
            f"{path} lacks or has too many of {sorted(differing)}: resume the run with the "
            "version that it was started with"
        )
    saved |= {"run_dir": run_dir, "resume": run_dir, "overwrite": False}
    saved["hidden_sizes"] = tuple(saved["hidden_sizes"])
    if saved["drop_factor"] is not None:
        saved["drop_factor"] = float(saved["drop_factor"])  # JSON has no infinity but "inf"
    return EffectiveConfig(**saved)


def _resolve_resumed(config: Config, saved: EffectiveConfig) -> EffectiveConfig:
    for field in fields(Config):
        value = getattr(config, field.name)
        if value != field.default:
            _check_same(field.name, value, saved)
    return replace(saved, progress=config.progress)


def _check_same(name: str, value: Any, saved: EffectiveConfig) -> None:
    ours = getattr(saved, name)
    if name in ("run_dir", "resume"):
        value, ours = Path(value).resolve(), Path(ours).resolve()
    if name != "progress" and value != ours:
        raise ValueError(
            f"{name}={value!r} contradicts {name}={ours!r} of the run in {str(saved.run_dir)!r}: "
            "leave it out, since a resumed run keeps its options"
        )


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device={device!r} is not there ({reason}): pass 'cpu'") from error


def _check_combinations(config: EffectiveConfig) -> None:
    for name, value in _PROTOCOLS["paper"].items():
        if config.protocol == "paper" and getattr(config, name) != value:
            raise ValueError(
                f"{name}={getattr(config, name)!r} contradicts protocol='paper', which sets "
                f"{value!r}: leave out one of the two"
            )
    for name in ("num_envs", "minibatch_size"):
        if config.frames_per_batch % getattr(config, name):
            raise ValueError(
                f"{name}={getattr(config, name)} does not divide frames_per_batch="
                f"{config.frames_per_batch}: choose one that does"
            )
    if config.setup != "amber" and config.drop_factor is not None:
        raise ValueError(
            f"drop_factor={config.drop_factor} with setup={config.setup!r}, which drops no batch: "
            "leave it out, or choose the setup amber"
        )
    if config.setup == "ppo" and (config.num_batches != 1 or not config.scale_minibatch):
        raise ValueError(
            f"num_batches={config.num_batches} and scale_minibatch={config.scale_minibatch} with "
            "setup='ppo', which keeps 1 batch and scales nothing: leave them out, or choose the "
            "setup mber or amber"
        )
    if config.minibatches == "episodic":
        lane = config.frames_per_batch // config.num_envs
        if not config.scale_minibatch or config.minibatch_size * config.num_batches > lane:
            raise ValueError(
                f"minibatches='episodic' with minibatch_size={config.minibatch_size}, num_batches="
                f"{config.num_batches} and scale_minibatch={config.scale_minibatch}: their product "
                f"must be scaled and at most frames_per_batch / num_envs = {lane}, the frames of "
                "one environment; lower one of them, or num_envs"
            )


def build_networks(
    config: EffectiveConfig, env: EnvBase
) -> tuple[TensorDictModuleBase, TensorDictModuleBase, ObservationNormalizer, dict[str, Any]]:
    """Actor and critic, the normaliser that both hold, and the arguments that made the actor."""
    size = env.observation_spec["observation"].shape[-1]
    arguments = {"observation_size": size, "hidden_sizes": list(config.hidden_sizes)}
    normalizer = ObservationNormalizer(size, device=config.device)
    if isinstance(env.action_spec, Categorical):
        arguments["num_actions"] = int(env.action_spec.space.n)
        actor = categorical_actor(**arguments, normalizer=normalizer)
    else:
        arguments["action_size"] = env.action_spec.shape[-1]
        actor = gaussian_actor(**arguments, normalizer=normalizer)
    critic = value_critic(size, hidden_sizes=config.hidden_sizes, normalizer=normalizer)
    return actor, critic, normalizer, arguments


def build_replay(config: EffectiveConfig, actor: TensorDictModuleBase) -> MultiBatchReplayBuffer:
    """The stored batches, with a filter that drops stale ones (amber) or only reports them."""
    staleness = ISStalenessFilter(
        actor,
        drop_factor=math.inf if config.drop_factor is None else config.drop_factor,
        metric=config.staleness_metric,
        report_only=config.setup != "amber",
    )
    frames = config.frames_per_batch
    if config.minibatches == "episodic":
        sampler = EpisodicMinibatchSampler(frames, frames // config.num_envs)
    else:
        sampler = AdaptiveMinibatchSampler(frames, scale_minibatch=config.scale_minibatch)
    return MultiBatchReplayBuffer(
        config.num_batches,
        frames,
        config.minibatch_size,
        staleness=staleness,
        sampler=sampler,
        keys=[*staleness.in_keys, "advantage", "value_target"],
    )


def build_env(config: EffectiveConfig) -> EnvBase:
    """The environments, where the collector wants them."""
    device = "cpu" if config.collector == "fast" else config.device
    return make_env(config.env_id, config.num_envs, seed=config.seed, device=device)


def build_collector(
    config: EffectiveConfig, env: EnvBase, actor: TensorDictModuleBase, total_frames: int
) -> BaseCollector:
    """The collector of whole batches, up to ``total_frames``.

    The fast one acts by a copy of the actor where the networks are not on the CPU: a simulator
    there would wait for the device at every step.
    """
    size = config.frames_per_batch
    if config.collector == "fast":
        elsewhere = torch.device(config.device).type != "cpu"
        steps = config.total_frames // config.num_envs
        return GymCollector(
            env,
            copy.deepcopy(actor).cpu() if elsewhere else actor,
            frames_per_batch=size,
            total_frames=total_frames,
            storing_device=config.device if elsewhere else None,
            compile_policy=config.compiled and steps >= _COMPILE_ACTOR_FROM_STEPS,
        )
    return Collector(
        env,
        actor,
        frames_per_batch=size,
        total_frames=total_frames,
        auto_register_policy_transforms=False,  # a feed-forward actor needs none
    )


def for_learning(batch: TensorDictBase, config: EffectiveConfig) -> TensorDictBase:
    """The batch that advantages are computed from, in which a time limit may count as an end."""
    batch = batch.copy()
    if config.time_limits == "terminal":
        batch["next", "terminated"] = batch["next", "done"]
    return batch


def open_run(config: EffectiveConfig) -> tuple[EffectiveConfig, EnvBase, RunDirectory]:
    """Everything that can fail before training: environment and run directory."""
    torch.set_num_threads(config.num_threads)
    random.seed(config.seed)
    np.random.seed(config.seed)  # noqa: NPY002  (for environments that use it)
    torch.manual_seed(config.seed)
    env = build_env(config)
    if config.staleness_metric == "per_dimension" and isinstance(env.action_spec, Categorical):
        raise ValueError(
            f"staleness_metric='per_dimension' with env_id={config.env_id!r}, whose actions are "
            "discrete: choose another metric"
        )
    # Last, as it may try the compiler.
    choice, resumed = config.compile, config.resume is not None
    if resumed:
        choice = "on" if config.compiled else "off"
    compiled = should_compile(choice, total_frames=config.total_frames, device=config.device)
    config = replace(config, compiled=compiled)
    run = RunDirectory(
        config.run_dir, overwrite=config.overwrite, resume=resumed, tensorboard=config.tensorboard
    )
    if not resumed:
        run.write_config(asdict(config))
    return config, env, run


def restore(
    checkpoints: Checkpoints, run: RunDirectory, log: TrainingLog, collection: CollectionState
) -> Sequence[str]:
    """Goes on from the newest sound checkpoint; returns why that is not exact, if it is not."""
    restored = checkpoints.restore()
    if restored is None:
        raise CheckpointError(
            f"there is no checkpoint in {checkpoints.directory}: start the run again, with "
            "--overwrite"
        )
    if restored.details["config_sha256"] != run.config_sha256():
        raise CheckpointError(
            f"{run.path}/config.json is not what it was when {restored.path} was saved: restore it"
        )
    if not collection.continues:
        log.recorder.drop_unfinished()
    reasons = [*restored.details["reasons"], *restored.differences]
    for reason in reasons:
        logger.warning("resumed approximately: %s", reason)
    return reasons


def describe_exactness(
    config: EffectiveConfig, collection: CollectionState, earlier: Sequence[str]
) -> dict[str, Any]:
    """Whether the run is, or can be resumed as, the one never interrupted; and if not, why."""
    reasons = dict.fromkeys([*earlier, *collection.inexact])
    if torch.device(config.device).type != "cpu":
        reasons[f"device {config.device}: sums are not made in the same order every time"] = None
    return {"exactness": "approximate" if reasons else "exact", "reasons": list(reasons)}


def train(config: Config) -> dict[str, Any]:
    """Trains, leaves the run directory, and returns what its summary.json says."""
    return learn(*open_run(resolve(config)))


def learn(config: EffectiveConfig, env: EnvBase, run: RunDirectory) -> dict[str, Any]:
    """Collects, judges, updates; logs every iteration."""
    actor, critic, normalizer, arguments = build_networks(config, env)
    replay = build_replay(config, actor)
    loss = AmberPPOLoss(
        actor,
        critic,
        clip_epsilon=config.clip_epsilon,
        critic_coeff=config.critic_coeff,
        entropy_coeff=config.entropy_coeff,
        normalize_advantage=config.normalize_advantage == "minibatch",
        functional=False,
    )
    on_cuda = torch.device(config.device).type == "cuda"
    optimizer = torch.optim.Adam(
        loss.parameters(),
        lr=config.learning_rate,
        eps=1e-5,
        capturable=on_cuda and config.compiled,  # a CUDA graph counts its steps on the device
    )
    update = UpdateStep(
        loss, optimizer, max_grad_norm=config.max_grad_norm, compile=config.compiled
    )
    advantage = GAE(
        gamma=config.gamma,
        lmbda=config.gae_lambda,
        value_network=critic,
        average_gae=config.normalize_advantage == "batch",
        vectorized=config.compiled,  # faster and, as the compiled update, equal up to rounding
    )
    judge = replay.staleness if config.setup == "amber" else None
    schedule = LinearSchedule(config.total_frames, optimizer=optimizer, loss=loss, staleness=judge)
    size = config.frames_per_batch
    total = -(-config.total_frames // size) * size  # the last batch is whole
    collector = build_collector(config, env, actor, total)
    log = TrainingLog(run, total, size, config.num_batches, progress=config.progress)
    collection = CollectionState(collector, env)
    policy = PolicyRecord(config.env_id, arguments, actor)
    checkpoints = Checkpoints(
        run.checkpoints,
        {
            "loss": loss,
            "optimizer": optimizer,
            "schedule": schedule,
            "replay": replay,
            "collection": collection,
            "log": log,
            "policy": policy,
            "generators": GlobalRNGState(),
        },
    )
    with log, StopOnInterrupt() as stop, ExitStack() as stack:
        earlier: Sequence[str] = []
        if config.resume is not None:
            earlier = restore(checkpoints, run, log, collection)
            tqdm.write(f"resumed after {log.recorder.frames} of {total} frames", file=sys.stdout)
        exactness = partial(describe_exactness, config, collection, earlier)
        summary: dict[str, Any] = {}

        def finish(error_type: type[BaseException] | None, *_: object) -> None:
            interrupted = log.recorder.frames < total
            summary.update(
                log.summary(),
                interrupted=interrupted,
                stopped_by=stop.signal.name if stop.signal and interrupted else None,
                **exactness(),
            )
            try:
                collector.shutdown()
                run.save_policy(policy.state_dict())
                run.write_summary(summary)
            except OSError as error:
                if error_type is None:
                    raise
                logger.error("policy.pt and summary.json could not be written: %s", error)

        stack.push(finish)  # an error, too, leaves what there is
        if config.compiled:
            tqdm.write("compiling in the first iteration; a stop takes effect after it", sys.stdout)
        log.lap("checkpoint")
        for batch in collector:
            log.lap("collect")
            values = schedule.step(log.recorder.frames)
            normalizer.update(batch["observation"])
            replay.extend(advantage(for_learning(batch, config)))
            log.lap("prepare")
            ledger = replay.refresh()
            log.lap("refresh")
            stored, age = replay.storage[:], replay.age
            epochs = []
            for _ in range(config.epochs):
                epochs.append(update.epoch(stored, replay.epoch()))
                update.raise_if_nonfinite(stored, age)
            if config.collector == "fast":
                collector.update_policy_weights_(actor)  # it may act by a copy
            else:
                collector.update_policy_weights_()
            log.lap("update")
            values["minibatch_size"] = replay.batch_size
            log.iteration(batch, values, torch.cat(epochs), ledger)
            frames = log.recorder.frames
            stops = stop.requested  # read once: a signal from here on is for the next iteration
            due = config.checkpoint_interval and frames // size % config.checkpoint_interval == 0
            if due or stops or frames >= total:
                details = {**exactness(), "config_sha256": run.config_sha256()}
                checkpoints.save(frames, score=log.recorder.mean_return, details=details)
            log.lap("checkpoint")
            if stops:
                break
    return summary


def command_line() -> Config:
    """What was asked for; on a resume, nothing may be asked for that the run does not have."""
    config = tyro.cli(Config, description=__doc__)
    if config.resume is None:
        return config
    saved = saved_config(config.resume)
    default = Config(**{field.name: getattr(saved, field.name) for field in fields(Config)})
    given = tyro.cli(Config, description=__doc__, default=default)
    for field in fields(Config):  # also one that equals the option's default, not the run's value
        _check_same(field.name, getattr(given, field.name), saved)
    return given


def main() -> int:
    """Command line; returns the exit code."""
    try:
        opened = open_run(resolve(command_line()))
    except (
        ValueError,
        TypeError,
        RuntimeError,
        OSError,
        ImportError,
        gymnasium.error.Error,
    ) as error:
        sys.exit(f"error: {error}")
    try:
        summary = learn(*opened)
    except (CheckpointError, NonFiniteDataError, NonFiniteError, OSError) as error:
        sys.exit(f"error: {error}")
    stopped_by, frames, run_dir = summary["stopped_by"], summary["frames"], opened[0].run_dir
    if stopped_by:
        sys.stdout.write(f"stopped after {frames} frames; go on with --resume {run_dir}\n")
        return 128 + signal.Signals[stopped_by]
    sys.stdout.write(f"final score {summary['final_score']:.4g} after {frames} frames: {run_dir}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
