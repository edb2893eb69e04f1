"""TorchRL's loggers, beside a run's own tables."""

import importlib.util
import os
from pathlib import Path
from typing import Any, Literal, get_args

LoggerName = Literal["csv", "tensorboard", "wandb", "mlflow"]

LEFT = ("tensorboard/events.out.tfevents.*", "wandb", "mlflow.db", "mlflow", "logger_id.txt")
"""What the loggers leave in a run directory, as patterns."""


def check_logger(name: LoggerName) -> None:
    """Refuses a logger that is unknown or whose package is not installed."""
    if name not in get_args(LoggerName):
        raise ValueError(f"logger={name!r}: choose one of {get_args(LoggerName)}")
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
        return _open(name, path.resolve(), kept)
    except Exception as error:  # each service has errors of its own
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
        os.environ["MLFLOW_RUN_ID"] = run_id  # which start_run takes, and removes
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{path}/mlflow.db"
    mlflow = loggers.MLFlowLogger(path.name, uri, artifact_location=str(path / "mlflow"))
    kept.write_text(mlflow.experiment.info.run_id)
    return mlflow
