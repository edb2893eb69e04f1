"""PPO's update written by hand in torch, and the simulator on its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from tensordict import TensorDict
from torch import Tensor

from amber_trl.modules import ObservationNormalizer, gaussian_actor, value_critic
from throughput.rounds import Clock, Report, Workload

CLIP_EPSILON, LEARNING_RATE, ADAM_EPS = 0.3, 3e-4, 1e-5
MIN_VARIANCE, CLIP = 1e-2, 5.0
KEYS = ("observation", "action", "action_log_prob", "advantage", "value_target")
"""The stored entries of a frame."""


def random_problem(work: Workload) -> tuple[Any, Any, TensorDict]:
    """Actor, critic and eight batches of random frames, with the environment's shapes."""
    with gymnasium.make(work.env_id) as env:
        size, action_size = map(gymnasium.spaces.flatdim, (env.observation_space, env.action_space))
        dtype = torch.from_numpy(env.observation_space.sample()).dtype
    normalizer = ObservationNormalizer(size, device=work.device)
    actor = gaussian_actor(size, action_size, normalizer=normalizer)
    rows = 8 * work.frames_per_batch
    stored = TensorDict({"observation": torch.randn(rows, size, dtype=dtype)}, [rows])
    stored = stored.to(work.device)
    with torch.no_grad():
        stored = actor(stored)
    for name in ("advantage", "value_target"):
        stored[name] = torch.randn(rows, 1, device=work.device)
    return actor, value_critic(size, normalizer=normalizer), stored


class HandWrittenUpdate:
    """PPO's update and Adam on plain tensors, as a careful user would write them.

    Actor and critic provide the initial weights and the observation statistics.
    """

    def __init__(self, actor: Any, critic: Any, stored: TensorDict, *, compile: bool) -> None:
        parameters = [*actor.parameters(), *critic.parameters()]
        self.weights = [parameter.detach().clone().requires_grad_() for parameter in parameters]
        normalizer = next(m for m in actor.modules() if isinstance(m, ObservationNormalizer))
        self._statistics = normalizer.mean, normalizer.variance.clamp_min(MIN_VARIANCE).sqrt()
        self._stored = [stored[name] for name in KEYS]
        self._moments = [[torch.zeros_like(w) for w in self.weights] for _ in range(2)]
        self._steps = torch.zeros((), dtype=torch.float64, device=self.weights[0].device)
        self._step = self._update
        if compile:
            self._step = torch.compile(self._update, dynamic=False, fullgraph=True)

    def __call__(self, index: Tensor) -> None:
        """One update on the rows of an index."""
        with torch.no_grad():
            self._step(index)

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Draws actions, as collection does at every step."""
        log_std, *layers = self.weights[:7]
        loc = _network(layers, self._standardised(observation))
        action = loc + log_std.exp() * torch.randn_like(loc)
        return action, _log_prob(action, loc, log_std)

    def _standardised(self, observation: Tensor) -> Tensor:
        mean, deviation = self._statistics
        return ((observation - mean) / deviation).clamp(-CLIP, CLIP).float()

    def _loss(self, weights: list[Tensor], index: Tensor) -> Tensor:
        observation, action, old, advantage, target = (x[index] for x in self._stored)
        inputs = self._standardised(observation)
        ratio = (_log_prob(action, _network(weights[1:7], inputs), weights[0]) - old).exp()
        clipped = ratio.clamp(1.0 - CLIP_EPSILON, 1.0 + CLIP_EPSILON)
        gain = advantage.squeeze(-1)
        value = _network(weights[7:], inputs)
        objective = torch.minimum(ratio * gain, clipped * gain).mean()
        return (value - target).square().mean() - objective

    def _update(self, index: Tensor) -> None:
        gradients = torch.func.grad(self._loss)(self.weights, index)
        self._steps.add_(1)
        size = (LEARNING_RATE / (1.0 - 0.9**self._steps)).float()
        bias = (1.0 - 0.999**self._steps).sqrt().float()
        for w, g, m, v in zip(self.weights, gradients, *self._moments, strict=True):
            m.lerp_(g, 0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            w.sub_(size * m / (v.sqrt() / bias + ADAM_EPS))


def _network(layers: list[Tensor], inputs: Tensor) -> Tensor:
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        inputs = torch.nn.functional.linear(inputs, weight, bias).tanh()
    return torch.nn.functional.linear(inputs, layers[-2], layers[-1])


def _log_prob(action: Tensor, loc: Tensor, log_std: Tensor) -> Tensor:
    standard = (action - loc) * (-log_std).exp()
    return (-0.5 * standard.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def simulate(work: Workload, report: Report, *, num_envs: int) -> None:
    """The simulator on its own, stepped with random actions."""
    step, clock = _stepper(work, num_envs), Clock()
    while True:
        clock.lap()
        for frame in range(work.frames_per_batch // num_envs):
            step(frame)
        report(collect=clock.lap())


def train(work: Workload, report: Report, *, num_envs: int, batches: int) -> None:
    """The simulator, with an iteration's number of forward and backward passes and Adam steps.

    Nothing is logged, checked or stored.
    """
    step = _stepper(work, num_envs)
    actor, critic, stored = random_problem(work)
    learner = HandWrittenUpdate(actor, critic, stored, compile=work.compile)
    observation = stored["observation"][:num_envs]
    clock = Clock()
    while True:
        clock.lap()
        with torch.no_grad():
            for frame in range(work.frames_per_batch // num_envs):
                learner.act(observation)
                step(frame)
        collected = clock.lap()
        for _ in range(work.epochs):
            order = torch.randperm(batches * work.frames_per_batch, device=work.device)
            for index in order.split(batches * work.minibatch_size):
                learner(index)
        if torch.device(work.device).type == "cuda":
            torch.cuda.synchronize()
        report(collect=collected, update=clock.lap())


def _stepper(work: Workload, num_envs: int) -> Callable[[int], None]:
    """Steps environments with actions drawn in advance."""
    envs = [gymnasium.make(work.env_id) for _ in range(num_envs)]
    actions = [envs[0].action_space.sample() for _ in range(997)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)

    def step(frame: int) -> None:
        for i, env in enumerate(envs):
            _, _, terminated, truncated, _ = env.step(actions[(frame + i) % len(actions)])
            if terminated or truncated:
                env.reset()

    return step
