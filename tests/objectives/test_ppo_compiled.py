"""The loss under ``torch.compile``."""

import torch

from amber_trl.objectives import AmberPPOLoss
from tests.objectives.problem import collect, networks, step


def test_compiled_agrees_with_eager() -> None:
    actor, critic = networks()
    frames = collect(actor)
    frames["action_log_prob"][5] -= 1000
    loss = AmberPPOLoss(actor, critic, functional=False)
    expected, expected_grads = step(loss, frames)
    # Traced forward and backward in one graph; the update step's tests generate code for it.
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        loss.zero_grad()
        emitted = compiled(frames)
        (emitted["loss_objective"] + emitted["loss_critic"]).backward()
        assert {*emitted.keys()} == {*expected.keys()}
        for key, value in expected.items():
            torch.testing.assert_close(emitted[key].detach(), value, msg=key)
        for name, parameter in loss.named_parameters():
            torch.testing.assert_close(parameter.grad, expected_grads[name], msg=name)
