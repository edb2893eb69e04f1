"""Whether a run compiles its update step."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch

from amber_trl import _compiler
from amber_trl.training import UpdateStep, should_compile
from tests.training.problem import make_loss

LONG = _compiler.COMPILE_FROM_FRAMES


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiler, "why_not_compiled", lambda device: None)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiler, "why_not_compiled", lambda device: "no g++")
    monkeypatch.setattr("amber_trl.training._compiled.why_not_compiled", lambda device: "no g++")


@pytest.mark.usefixtures("works")
@pytest.mark.parametrize(
    ("choice", "total_frames", "expected"),
    [("auto", LONG, True), ("auto", LONG - 1, False), ("on", 1, True), ("off", 10 * LONG, False)],
)
def test_is_decided_by_choice_and_length(
    choice: Literal["auto", "on", "off"], total_frames: int, expected: bool
) -> None:
    assert should_compile(choice, total_frames=total_frames) is expected


@pytest.mark.usefixtures("broken")
def test_without_a_compiler_auto_warns_and_on_raises() -> None:
    with pytest.warns(UserWarning, match="runs eagerly.*no g\\+\\+"):
        assert should_compile("auto", total_frames=LONG) is False
    with pytest.raises(RuntimeError, match="cannot be compiled: no g\\+\\+"):
        should_compile("on", total_frames=LONG)
    assert should_compile("auto", total_frames=1) is False
    assert should_compile("off", total_frames=LONG) is False


@pytest.mark.usefixtures("broken")
def test_without_a_compiler_a_compiled_step_is_refused_before_training() -> None:
    loss = make_loss(functional=False)
    with pytest.raises(RuntimeError, match="no g\\+\\+; or compile=False"):
        UpdateStep(loss, torch.optim.Adam(loss.parameters()), compile=True)


def test_refuses_other_words_and_lengths() -> None:
    with pytest.raises(ValueError, match="choice='yes' is unknown"):
        should_compile("yes", total_frames=1)  # type: ignore[arg-type]
    for frames, error in ((0, ValueError), (1e6, TypeError)):
        with pytest.raises(error, match=f"total_frames={frames}"):
            should_compile("auto", total_frames=frames)  # type: ignore[arg-type]


def test_says_why_other_devices_do_not_compile() -> None:
    assert "not on meta" in str(_compiler.why_not_compiled("meta"))


def _answer(cache: Path, **variables: str) -> str:
    """What another process, with nothing cached, reports about the compiler."""
    program = "from amber_trl._compiler import why_not_compiled; print(why_not_compiled('cpu'))"
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)} | variables
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_a_missing_compiler_is_detected(tmp_path: Path) -> None:
    answer = _answer(tmp_path, CXX="no-such-compiler")
    assert "no-such-compiler" in answer
    assert "a C++ compiler is needed" in answer


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    assert _answer(tmp_path).strip() == "None"
    # Only the kernel: the other files test the processor's instructions, and torch does without those
    # whose test fails.
    kernels = [*tmp_path.rglob("*.main.so")]
    assert kernels
    for kernel in kernels:
        kernel.write_bytes(b"")  # as a crash leaves an unflushed file
    assert "remove the directory that TORCHINDUCTOR_CACHE_DIR names" in _answer(tmp_path)
