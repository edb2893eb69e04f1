"""What the command lines share: how they begin, before the slow imports, and how they print."""

import os
import sys


def begin() -> None:
    """Says on a terminal that torch is being loaded, which takes seconds, and imports MuJoCo.

    TorchRL imports MuJoCo too. Where the library that ``MUJOCO_GL`` names is missing, that fails,
    which ends the program in one line here.
    """
    if {"-h", "--help"} & set(sys.argv):
        return
    if sys.stderr.isatty():
        sys.stderr.write("loading torch and TorchRL\n")
    os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")  # TorchRL's own, INFO by default
    try:
        import mujoco  # noqa: F401
    except Exception as error:
        if getattr(error, "name", None) != "mujoco":  # without which other tasks can be trained
            given = os.environ.get("MUJOCO_GL")
            sys.exit(
                f"error: MuJoCo cannot be loaded with MUJOCO_GL={given!r} ({error}): install that "
                "library (OSMesa, or EGL of a driver), or leave the variable out"
            )


def say(text: str) -> None:
    """Prints a line at once; characters that the terminal does not have are escaped.

    If nobody reads it, as after ``| head -1``, this and what follows is dropped.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
