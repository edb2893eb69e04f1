"""TorchRL's loggers, beside a run's own tables."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

LoggerName = Literal["csv", "tensorboard", "wandb", "mlflow"]

LEFT = ("tensorboard/events.out.tfevents.*", "wandb", "mlflow.db", "mlflow", "logger_id.txt")
"""What the loggers leave in a run directory, as patterns."""


def _tensorboard(path: Path, _: str | None) -> Any:
    from torchrl.record.loggers import TensorboardLogger

    return TensorboardLogger("tensorboard", str(path)), ""


def _wandb(path: Path, run_id: str | None) -> Any:
    from torchrl.record.loggers import WandbLogger

    logger = WandbLogger(path.name, save_dir=path, id=run_id, log_env_packages=False)
    return logger, logger.experiment.id


def _mlflow(path: Path, run_id: str | None) -> Any:
    from torchrl.record.loggers import MLFlowLogger

    if run_id is not None:
        os.environ["MLFLOW_RUN_ID"] = run_id  # which start_run takes, and removes
    logger = MLFlowLogger(
        path.name,
        os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{path}/mlflow.db",
        artifact_location=str(path / "mlflow"),
    )
    return logger, logger.experiment.info.run_id


_MADE_BY: dict[str, Callable[[Path, str | None], Any]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def check_logger(name: LoggerName) -> None:
    """Refuses a logger that is unknown or whose package is not installed."""
    if name != "csv" and name not in _MADE_BY:
        raise ValueError(f"logger={name!r}: choose one of {['csv', *_MADE_BY]}")
    if name != "csv" and importlib.util.find_spec(name) is None:
        raise ImportError(
            f"logger={name!r}, but {name} is not installed: pip install {name}, or choose the "
            "logger csv"
        )


def open_logger(name: LoggerName, path: Path) -> Any:
    """Starts a logger for the run in a directory, or goes on with the one it had; None for csv."""
    if name == "csv":
        return None
    kept = path / "logger_id.txt"  # of a service in which a resumed run must find itself again
    try:
        logger, run_id = _MADE_BY[name](path.resolve(), kept.read_text() if kept.exists() else None)
    except Exception as error:  # each service has errors of its own
        reason = " ".join(str(error).split())
        raise RuntimeError(f"logger={name!r} could not start: {reason}") from error
    kept.write_text(run_id)
    return logger
