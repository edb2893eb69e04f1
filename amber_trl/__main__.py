"""The ``amber-trl`` command, also ``python -m amber_trl``.

Each command is a function: its arguments are the options, its docstring is the help text, and the text
that it returns is printed. Imports that a command needs are made when it runs.
"""

import runpy
import sys
from pathlib import Path
from typing import Literal

from tyro.conf import Positional
from tyro.extras import SubcommandApp

from amber_trl._terminal import begin, say

app = SubcommandApp()


@app.command
def train() -> None:
    """Train with the main recipe; ``amber-trl train --help`` shows its options."""


def _run_recipe(words: list[str]) -> int:
    """Runs the main recipe with the command line ``words``, and returns its exit code.

    The recipe is a script next to the package in a checkout, and inside the package in a wheel.
    """
    package = Path(__file__).parent
    folders = (package / "_recipes", package.parent / "recipes")
    folder = next(str(path) for path in folders if path.is_dir())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that its imports are found
    sys.argv = ["amber-trl train", *words]
    return int(runpy.run_path(f"{folder}/ppo_amber_mujoco.py")["main"]())


@app.command
def plot(runs: Positional[tuple[Path, ...]], *, out: Path) -> str:
    """Draw the learning curves, batches in use and staleness of training runs.

    Runs may be of any recipe, task and length. Runs that differ only in their seed are averaged; any
    other option that affects training makes them separate setups. Evaluations (``--eval-interval``) are
    dashed lines with dots. Unfinished runs are drawn as far as they have come. Needs matplotlib.

    Args:
        runs: run directories, or folders or zip archives that contain some; at least one.
        out: folder for the figures, which are PNG files; created if missing.
    """
    from amber_trl.evaluation import plot_runs

    return "\n".join(str(path) for path in plot_runs(runs, out))


@app.command
def evaluate(
    run: Positional[Path],
    *,
    checkpoint: Literal["last", "best", "final"] = "last",
    episodes: int = 20,
    stochastic: bool = False,
    seed: int = 0,
    max_frames: int = 100_000,
    env_id: str | None = None,
    wrappers: tuple[str, ...] | None = None,
    actor: str | None = None,
    out: Path | None = None,
    video: Path | None = None,
) -> str:
    """Evaluate a run's policy in fresh environments, and report its mean return.

    Args:
        run: the run directory.
        checkpoint: which policy: that of the last checkpoint, that of the best one (highest mean return
            of 100 training episodes or, with --eval-interval, of an evaluation), or the final policy.pt.
        episodes: number of episodes.
        stochastic: sample actions as in training, instead of taking the mean (or likeliest) action.
        seed: seed of environments and actions.
        max_frames: maximum frames of an episode; a longer episode is an error.
        env_id: the environment that the policy was trained on. Required if its id has the form
            module:id, since that imports the module.
        wrappers: the wrappers that the policy was trained with. Required if one of them is not
            gymnasium's, since that imports its module.
        actor: the module:function that made the actor. Required if the run had that option.
        out: JSON file for the result (None: evaluation-CHECKPOINT-deterministic.json, or
            -stochastic, in the run directory).
        video: .mp4 file for a recording of one more episode. Needs imageio-ffmpeg and, without a
            display, the environment variable MUJOCO_GL=egl or MUJOCO_GL=osmesa.
    """
    from amber_trl.evaluation import evaluate_run

    found = evaluate_run(
        run,
        checkpoint=checkpoint,
        episodes=episodes,
        deterministic=not stochastic,
        seed=seed,
        max_frames=max_frames,
        env_id=env_id,
        wrappers=wrappers,
        actor=actor,
        out=out,
        video=video,
        progress=sys.stderr.isatty(),
    )
    actions = "drawn actions" if stochastic else "mean actions"
    said = f"{found['env_id']}, {found['policy']}, episodes={episodes}, {actions}: "
    said += f"mean return {found['mean']:.2f}"
    if found["interval"] is not None:
        low, high = found["interval"]
        said += f" (95 % interval {low:.2f} to {high:.2f}), standard deviation {found['std']:.2f}"
    return said if video is None else f"{said}\nvideo of one more episode: {video}"


@app.command
def verify(run: Positional[Path]) -> str:
    """Verify the checksums of a run's checkpoints, and report damaged ones.

    Args:
        run: the run directory, or one of its checkpoints.
    """
    from amber_trl.checkpoints import CheckpointError, verify_run

    found = verify_run(run)
    said = "\n".join(problem or f"{path}: whole" for path, problem in found)
    if any(problem for _, problem in found):
        raise CheckpointError(f"a checkpoint of {run} is damaged\n{said}")
    return said


def main(args: list[str] | None = None) -> int:
    """Runs a command line (None: ``sys.argv``), and returns its exit code.

    The code is 0; 1 after an error, which is printed on standard error; or 130 after Ctrl-C. For
    ``train`` it is the recipe's.
    """
    begin()
    words = sys.argv[1:] if args is None else args
    if words[:1] == ["train"]:
        return _run_recipe(words[1:])
    try:
        said = app.cli(prog="amber-trl", description="Work with training runs.", args=args)
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    if said:
        say(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
