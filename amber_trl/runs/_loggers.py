"""TorchRL's loggers, in addition to a run's own tables."""

import importlib.util
import os
from pathlib import Path
from typing import Any, Literal, get_args

LoggerName = Literal["csv", "tensorboard", "wandb", "mlflow"]

LEFT = ("tensorboard/events.out.tfevents.*", "wandb", "mlflow.db", "mlflow", "logger_id.txt")
"""The loggers' files in a run directory, as patterns."""


def check_logger(name: LoggerName) -> None:
    """Raises for a logger that is unknown or whose package is not installed."""
    if name not in get_args(LoggerName):
        raise ValueError(f"logger={name!r}: choose one of {get_args(LoggerName)}")
    if name != "csv" and importlib.util.find_spec(name) is None:
        raise ImportError(
            f"logger={name!r}, but {name} is not installed: pip install {name}, or choose the "
            "logger csv"
        )


def open_logger(name: LoggerName, path: Path) -> Any:
    """Starts a logger for the run in a directory, or continues its earlier one; None for csv."""
    if name == "csv":
        return None
    kept = path / "logger_id.txt"  # id by which a resumed run finds itself in a service
    try:
        return _open(name, path.resolve(), kept)
    except Exception as error:  # each service has its own errors
        reason = " ".join(str(error).split())
        raise RuntimeError(f"logger={name!r} could not start: {reason}") from error


def _open(name: LoggerName, path: Path, kept: Path) -> Any:
    from torchrl.record import loggers

    if name == "tensorboard":
        return loggers.TensorboardLogger("tensorboard", str(path))
    run_id = kept.read_text() if kept.exists() else None
    if name == "wandb":
        wandb = loggers.WandbLogger(path.name, save_dir=path, id=run_id, log_env_packages=False)
        kept.write_text(wandb.experiment.id)
        return wandb
    if run_id is not None:
        os.environ["MLFLOW_RUN_ID"] = run_id  # read and removed by start_run
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{path}/mlflow.db"
    mlflow = loggers.MLFlowLogger(path.name, uri, artifact_location=str(path / "mlflow"))
    kept.write_text(mlflow.experiment.info.run_id)
    return mlflow
