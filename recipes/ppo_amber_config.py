"""The main recipe's options, what they imply, and which combinations are refused."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from command_line import continued_config, metric_of
from ranges import Range
from run_options import RunOptions, check_options, default_run_dir

from amber_trl.runs import import_named


@dataclass(frozen=True, kw_only=True)
class Config(RunOptions):
    """Training options. Where the default is None, the parentheses say what applies."""

    env_id: str = "HalfCheetah-v5"
    """Gymnasium id. Observations must be a one-dimensional Box of floats, actions a Box or Discrete."""
    setup: Literal["ppo", "mber", "amber", "disc", "geppo", "gipo"] = "amber"
    """ppo: the newest batch only. mber: all stored batches, by default two. amber: the fresh ones of
    eight. disc, geppo, gipo: other losses, close to their authors' settings (docs/methods.md)."""
    protocol: Literal["default", "paper"] = "default"
    """default: 8 environments, bootstrapping at time limits. paper: 1 environment, time limits terminal."""
    device: str = "cpu"
    """Torch device for networks and storage."""
    collector: Literal["fast", "torchrl"] | None = None
    """fast: amber_trl's GymCollector, with a CPU copy of the actor if the networks are elsewhere.
    torchrl: TorchRL's Collector, on the networks' device. Both collect the same frames (fast)."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the update step and, if total_frames / num_envs is at least 500 000, the actor of the fast
    collector. auto: only in runs of at least 100 000 frames, and only if a compiler works."""
    num_threads: Annotated[int, Range(1)] = 1
    """Threads that torch uses; one is fastest for networks of this size."""
    eval_interval: Annotated[int | None, Range(1)] = None
    """Iterations between evaluations with the mean action (None: never). A checkpoint is saved after each;
    their mean return decides which is the best."""
    eval_episodes: Annotated[int, Range(1)] = 10
    """Episodes per evaluation, always from the same initial states."""
    num_envs: Annotated[int | None, Range(1)] = None
    """Environments stepped in one process (8; paper protocol: 1)."""
    time_limits: Literal["bootstrap", "terminal"] | None = None
    """Bootstrap the value at time limits, or treat them as terminal (bootstrap; paper protocol: terminal)."""
    frames_per_batch: Annotated[int | None, Range(1)] = None
    """N, frames per iteration over all environments (2048; geppo: 1024; smoke: 256)."""
    num_batches: Annotated[int | None, Range(1)] = None
    """L, batches kept, including the newest (ppo 1, mber 2, amber 8, disc 64, geppo 4, gipo 8)."""
    replay_frames: Annotated[int | None, Range(1)] = None
    """L N, frames kept; replaces num_batches, and must be a multiple of frames_per_batch."""
    drop_factor: Annotated[float | None, Range(0, infinite=True)] = None
    """Staleness above which a batch is not used, in [0, inf] (amber: 0.25; disc: 0.1; required for metric age).
    Change it with the clip range, to which R' - 1 is proportional when all batches are used."""
    batches_in_use: Annotated[int | None, Range(1)] = None
    """Number of batches to use; the drop factor is then chosen in each iteration to give that number."""
    ess_in_use: Annotated[float | None, Range(0, above=True)] = None
    """Effective sample size to use, in batches; replaces batches_in_use."""
    max_drop_factor: Annotated[float | None, Range(0, above=True)] = None
    """Upper bound on the drop factor that batches_in_use or ess_in_use sets (1; required for metric age)."""
    staleness_metric: str | None = None
    """Staleness metric: mean_abs_deviation (the paper's R' - 1), per_dimension, kl,
    effective_sample_size, age, or module:function for a function of log-ratios or a DistributionMetric
    (mean_abs_deviation; disc: per_dimension)."""
    epochs: Annotated[int | None, Range(1)] = None
    """Epochs over the batches in use per iteration (10; smoke: 2)."""
    target_kl: Annotated[float | None, Range(0, above=True)] = None
    """Make no further epoch in an iteration once the estimated KL divergence from the behaviour policies
    of the batches in use exceeds this (None: never)."""
    minibatch_size: Annotated[int | None, Range(1)] = None
    """Minibatch frames per batch in use; must divide frames_per_batch (64; geppo: 32)."""
    scale_minibatch: bool = True
    """Grow the minibatch with the batches in use; otherwise the number of updates grows."""
    minibatches: Literal["uniform", "episodic", "stratified"] | None = None
    """How minibatches are drawn: uniformly, as one contiguous run of one environment (episodic), or with
    a fixed share of each batch in use (uniform; disc, geppo: stratified)."""
    shares: Annotated[tuple[float, ...] | None, Range(0)] = None
    """Relative shares of stratified minibatches by batch age, newest first: one for each of num_batches
    (equal; geppo: L, L - 1, ..., 1)."""
    sampler: str | None = None
    """Custom sampler, as module:Class or module:function: called with frames_per_batch, it must return a
    MultiBatchSampler (None: as minibatches says)."""
    loss: Literal["amber", "disc", "geppo", "gipo"] | None = None
    """Policy loss. amber: PPO's clip. disc: a clip per action dimension. geppo: a clip around the policy
    before the updates. gipo: a soft trust weight, no clip (amber; disc, geppo, gipo: their own)."""
    sigma: Annotated[float | None, Range(0, above=True)] = None
    """Width of gipo's trust weight, in nats (1)."""
    learning_rate: Annotated[float, Range(0, above=True)] = 3e-4
    """Adam's step size."""
    learning_rate_schedule: Literal["linear", "constant", "adaptive"] | None = None
    """Step size schedule: linear to 0, constant, or adaptive. With adaptive, for the loss geppo only, the
    actor's step size follows how far the policy moved (linear; geppo: adaptive)."""
    clip_epsilon: Annotated[float | None, Range(0, 1, above=True)] = None
    """Clip range (ppo: 0.3; mber, amber, disc: 0.4; geppo: 0.1)."""
    range_schedule: Literal["linear", "constant"] | None = None
    """Schedule of clip range and drop factor: linear to 0, or constant (linear; disc, geppo: constant;
    gipo has neither)."""
    gamma: Annotated[float | None, Range(0, 1)] = None
    """Discount per frame (0.99; geppo: 0.995)."""
    gae_lambda: Annotated[float | None, Range(0, 1)] = None
    """Lambda of GAE, vtrace and gae-v (0.95; geppo: 0.97)."""
    advantages: Literal["stored", "recomputed", "vtrace", "gae-v"] | None = None
    """Advantages and value targets. stored: GAE, once, when a batch is collected. The others recompute
    them in each iteration with the current critic, for the batches in use. recomputed: GAE. vtrace
    (IMPALA), gae-v (DISC, GePPO): corrected for the current actor (stored; disc, geppo: gae-v)."""
    critic_on: Literal["active", "all"] = "active"
    """Batches for the value loss: those in use, as for the policy loss, or all that are stored."""
    reward_scaling: bool = False
    """Divide rewards by the running standard deviation of their discounted sum, for tasks whose returns
    are far from 1; logged returns are not divided."""
    normalize_advantage: Literal["batch", "minibatch", "none"] | None = None
    """Standardise advantages once per collected batch, in each minibatch, or not at all (batch; disc,
    geppo: minibatch)."""
    critic_coeff: Annotated[float, Range(0)] = 1.0
    """Weight of the value loss."""
    entropy_coeff: Annotated[float, Range(0)] = 0.0
    """Weight of the entropy bonus; 0 means none."""
    max_grad_norm: Annotated[float | None, Range(0, above=True)] = None
    """Largest norm of the gradient, which is rescaled above it (None: unlimited)."""
    hidden_sizes: Annotated[tuple[int, ...], Range(1)] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "tanh"
    """Activation of the hidden layers."""
    actor: str | None = None
    """Custom actor, as module:function: called as function(observation_spec, action_spec,
    normalizer=...), it must return a ProbabilisticActor; hidden_sizes and activation then have no
    effect (None: a Gaussian or categorical network)."""


@dataclass(frozen=True, kw_only=True)
class EffectiveConfig(Config):
    """A configuration with every option resolved, as a run's config.json holds it."""

    run_dir: Path
    total_frames: int
    num_envs: int
    time_limits: Literal["bootstrap", "terminal"]
    frames_per_batch: int
    num_batches: int
    staleness_metric: str
    epochs: int
    minibatch_size: int
    minibatches: Literal["uniform", "episodic", "stratified"]
    loss: Literal["amber", "disc", "geppo", "gipo"]
    learning_rate_schedule: Literal["linear", "constant", "adaptive"]
    gamma: float
    gae_lambda: float
    advantages: Literal["stored", "recomputed", "vtrace", "gae-v"]
    normalize_advantage: Literal["batch", "minibatch", "none"]
    collector: Literal["fast", "torchrl"]
    compiled: bool


DROPPING = ("drop_factor", "batches_in_use", "ess_in_use")
"""Options of which one decides which batches are in use; a setup that drops none has none."""
_DEFAULTS: dict[str, Any] = {
    "total_frames": 1_000_000,
    "checkpoint_interval": None,  # if --checkpoint-interval None is given
    "frames_per_batch": 2048,
    "staleness_metric": "mean_abs_deviation",
    "epochs": 10,
    "minibatch_size": 64,
    "minibatches": "uniform",
    "loss": "amber",
    "learning_rate_schedule": "linear",
    "range_schedule": "linear",
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "advantages": "stored",
    "normalize_advantage": "batch",
    "collector": "fast",
    "compiled": False,  # decided by open_run
}
_SETUPS: dict[str, dict[str, Any]] = {
    "ppo": {"num_batches": 1, "clip_epsilon": 0.3},
    "mber": {"num_batches": 2, "clip_epsilon": 0.4},
    "amber": {"num_batches": 8, "clip_epsilon": 0.4, "drop_factor": 0.25},
    "disc": {
        "num_batches": 64,
        "loss": "disc",
        "clip_epsilon": 0.4,
        "drop_factor": 0.1,
        "staleness_metric": "per_dimension",
        "minibatches": "stratified",
        "range_schedule": "constant",
        "advantages": "gae-v",
        "normalize_advantage": "minibatch",
    },
    "geppo": {
        "frames_per_batch": 1024,
        "num_batches": 4,
        "minibatch_size": 32,
        "minibatches": "stratified",
        "loss": "geppo",
        "clip_epsilon": 0.1,
        "learning_rate_schedule": "adaptive",
        "range_schedule": "constant",
        "gamma": 0.995,
        "gae_lambda": 0.97,
        "advantages": "gae-v",
        "normalize_advantage": "minibatch",
    },
    "gipo": {"num_batches": 8, "loss": "gipo"},
}
_PROTOCOLS: dict[str, dict[str, Any]] = {
    "default": {"num_envs": 8, "time_limits": "bootstrap"},
    "paper": {"num_envs": 1, "time_limits": "terminal"},
}
_SMOKE: dict[str, Any] = {"total_frames": 2560, "frames_per_batch": 256, "epochs": 2}


def resolve(config: Config) -> EffectiveConfig:
    """Fills in what setup, protocol and smoke imply; refuses contradictions by the options' names."""
    check_options(config)
    _check_device(config.device)
    if (own := continued_config(EffectiveConfig, config)) is not None:
        return replace(own, progress=config.progress, logger=config.logger)
    values = _DEFAULTS | _SETUPS[config.setup] | _PROTOCOLS[config.protocol]
    values |= _SMOKE if config.smoke else {}
    values["run_dir"] = default_run_dir(config, config.setup)
    given = {name: value for name, value in asdict(config).items() if value is not None}
    values |= given
    _fill_in(values, given)
    effective = EffectiveConfig(**values)
    _check_combinations(effective)
    return effective


def _fill_in(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Adds what other values imply, and removes options that they leave without effect."""
    frames = values["frames_per_batch"]
    if (kept := values.get("replay_frames")) is not None:
        if kept % frames or given.get("num_batches") not in (None, kept // frames):
            raise ValueError(
                f"replay_frames={kept} with frames_per_batch={frames} and num_batches="
                f"{given.get('num_batches')}: give a multiple of frames_per_batch, and one of the two"
            )
        values["num_batches"] = kept // frames
    if given.keys() & {"batches_in_use", "ess_in_use"} and "drop_factor" not in given:
        if values["staleness_metric"] != "age":
            values.setdefault("max_drop_factor", 1.0)
        values.pop("drop_factor", None)
    if values["loss"] == "gipo":
        values.setdefault("sigma", 1.0)
        if "clip_epsilon" not in given:
            values.pop("clip_epsilon", None)
    elif values["setup"] == "gipo":
        values.setdefault("clip_epsilon", 0.4)
    if not values.keys() & {"clip_epsilon", "drop_factor"} and "range_schedule" not in given:
        values.pop("range_schedule")
    if values["loss"] != "geppo" and "learning_rate_schedule" not in given:
        values["learning_rate_schedule"] = "linear"
    if values["setup"] == "geppo" and values["minibatches"] == "stratified":
        values.setdefault("shares", tuple(range(values["num_batches"], 0, -1)))


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device={device!r} is not available ({reason}): pass 'cpu'") from error


def _check_combinations(config: EffectiveConfig) -> None:
    """Refuses options that contradict each other or would have no effect."""

    def refuse(wrong: bool, names: str, why: str) -> None:
        if wrong:
            said = " with ".join(f"{name}={getattr(config, name)!r}" for name in names.split())
            raise ValueError(f"{said}: {why}; change one of them, or leave it out")

    frames, batches, scales = config.frames_per_batch, config.num_batches, config.scale_minibatch
    if config.protocol == "paper":
        for name, value in _PROTOCOLS["paper"].items():
            refuse(getattr(config, name) != value, f"{name} protocol", f"it sets {value!r}")
    for name in ("num_envs", "minibatch_size"):
        refuse(frames % getattr(config, name) > 0, f"{name} frames_per_batch", "choose a divisor")
    chosen = [name for name in DROPPING if getattr(config, name) is not None]
    drops = "drop_factor" in _SETUPS[config.setup]
    if chosen:
        refuse(not drops, f"{chosen[0]} setup", "only amber and disc drop batches, with any loss")
    refuse(len(chosen) > 1, " ".join(chosen), "each decides which batches are in use")
    for name in DROPPING[1:]:
        wanted = getattr(config, name)
        if wanted is not None:
            refuse(wanted > batches, f"{name} num_batches", "no more can be in use than are kept")
            open_ended = config.max_drop_factor is None
            refuse(open_ended, f"{name} staleness_metric max_drop_factor", "give the oldest age")
    if config.staleness_metric == "age" and config.drop_factor is not None:
        within = 0 < config.drop_factor < 1  # the second batch has age 1
        refuse(within, "drop_factor staleness_metric", "only the newest batch is that young")
    if config.max_drop_factor is not None:
        free = config.batches_in_use is None and config.ess_in_use is None
        refuse(free, "max_drop_factor batches_in_use ess_in_use", "it bounds what these choose")
    if config.clip_epsilon is None and config.drop_factor is None:
        given = config.range_schedule is not None
        refuse(given, "range_schedule loss setup", "there is no clip range and no drop factor")
    if config.loss == "disc":
        why = "some minibatches would have no frame of the newest batch, which its penalty is about"
        refuse(config.minibatches == "episodic", "minibatches loss", why)
        refuse(not scales, "scale_minibatch loss", why)
    if config.loss == "gipo":
        refuse(config.clip_epsilon is not None, "clip_epsilon loss", "gipo clips nothing")
    else:
        refuse(config.sigma is not None, "sigma loss", "it is an option of gipo")
    if config.learning_rate_schedule == "adaptive":
        refuse(config.loss != "geppo", "learning_rate_schedule loss", "it is an option of geppo")
        shrinks = config.range_schedule == "linear"  # and with it the change that is aimed at
        refuse(
            shrinks, "learning_rate_schedule range_schedule", "the step size would follow it to 0"
        )
    if config.setup == "ppo":
        refuse(batches > 1, "num_batches setup", "it keeps one batch; mber and amber keep more")
        refuse(not scales, "scale_minibatch setup", "with one batch there is nothing to scale")
        refuse(config.advantages != "stored", "advantages setup", "it reuses no batch")
    if config.critic_on == "all":
        refuse(not drops, "critic_on setup", "it uses all batches anyway; amber and disc drop some")
        refuse(config.drop_factor == math.inf, "critic_on drop_factor", "all are in use anyway")
        refuse(batches == 1, "critic_on num_batches", "the only batch is in use anyway")
        stale = config.advantages == "stored"
        refuse(stale, "critic_on advantages", "the targets would be those of old critics")
        refuse(not scales, "critic_on scale_minibatch", "the actor would make fewer updates")
        refuse(config.critic_coeff == 0, "critic_on critic_coeff", "there is no value loss")
    metric_of(config.staleness_metric)
    if config.sampler is not None:
        import_named("sampler", config.sampler)
        refuse(config.minibatches != "uniform", "sampler minibatches", "both decide how to draw")
        refuse(not scales, "sampler scale_minibatch", "the sampler decides that")
    if config.minibatches != "uniform":
        refuse(not scales, "minibatches scale_minibatch", "they always grow")
    if config.shares is not None:
        refuse(config.minibatches != "stratified", "shares minibatches", "only stratified has any")
        wrong = len(config.shares) != batches or not config.shares[0]
        refuse(wrong, "shares num_batches", "give one per batch, above 0 for the newest")
    if config.minibatches == "episodic":
        limit = frames // config.num_envs
        names = "minibatches minibatch_size num_batches"
        why = f"their product must be at most frames_per_batch / num_envs = {limit}"
        refuse(config.minibatch_size * batches > limit, names, why)
