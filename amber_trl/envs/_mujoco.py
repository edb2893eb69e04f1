"""MuJoCo's data as plain data, and its warnings only once each."""

import functools
import hashlib
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

logger = logging.getLogger(__name__)


def is_mujoco(value: Any, name: str) -> bool:
    """Whether ``value`` is an instance of the class ``name`` of the ``mujoco`` package."""
    mujoco = sys.modules.get("mujoco")
    return mujoco is not None and type(value) is getattr(mujoco, name)


def encode_data(data: Any) -> dict[str, Any]:
    """All of a ``mujoco.MjData``: the integration state, and everything a task may read before it steps.

    This is MuJoCo's own serialisation with the model (three quarters of its size) replaced by the
    model's digest.
    """
    model, state = _model_bytes(data.model), data.__getstate__()
    at = state.index(model)
    rest = np.frombuffer(state[:at] + state[at + len(model) :], dtype=np.uint8)
    digest = hashlib.sha256(model).hexdigest()
    return {"model": digest, "model_at": at, "bytes": torch.from_numpy(rest.copy())}


def decode_data(plain: Mapping[str, Any], data: Any) -> bool:
    """Copies saved data into ``data``; returns False and changes nothing if the model differs."""
    import mujoco

    model, at = _model_bytes(data.model), plain["model_at"]
    if hashlib.sha256(model).hexdigest() != plain["model"]:
        return False
    rest = plain["bytes"].numpy().tobytes()
    saved = mujoco.MjData.__new__(mujoco.MjData)
    try:
        saved.__setstate__(rest[:at] + model + rest[at:])
    except ValueError as error:
        raise ValueError(
            f"MuJoCo {mujoco.__version__} cannot read the saved simulator ({error}): use the "
            "version that wrote it"
        ) from error
    mujoco.mj_copyData(data, data.model, saved)
    return True


def _model_bytes(model: Any) -> bytes:
    import mujoco

    memory = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, memory)
    return memory.tobytes()


@contextmanager
def warnings_once() -> Iterator[None]:
    """Logs each MuJoCo warning once per process, however many models are built.

    MuJoCo's own handler prints every warning and appends it to a file in the working directory.
    """
    try:
        import mujoco
    except ImportError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(log_once)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


@functools.cache
def log_once(message: str) -> None:
    """Logs a warning of MuJoCo's, unless it was logged before."""
    logger.warning("MuJoCo: %s", message)
