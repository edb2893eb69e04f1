"""Shared by the command lines: start-up before the slow imports, and printing."""

import os
import sys


def begin() -> None:
    """Prints on a terminal that torch is being loaded, which takes seconds, and imports MuJoCo.

    TorchRL imports MuJoCo too. If the library that ``MUJOCO_GL`` names is missing, that import fails;
    importing MuJoCo here ends the program with one line instead.
    """
    if {"-h", "--help"} & set(sys.argv):
        return
    if sys.stderr.isatty():
        sys.stderr.write("loading torch and TorchRL\n")
    os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")  # TorchRL's own level, INFO by default
    try:
        import mujoco  # noqa: F401
    except Exception as error:
        if getattr(error, "name", None) != "mujoco":  # other tasks can be trained without it
            given = os.environ.get("MUJOCO_GL")
            sys.exit(
                f"error: MuJoCo cannot be loaded with MUJOCO_GL={given!r} ({error}): install that "
                "library (OSMesa, or EGL of a driver), or unset the variable"
            )


def say(text: str) -> None:
    """Prints a line immediately; escapes characters that the terminal cannot encode.

    If the reader has gone, as after ``| head -1``, this and all later output is dropped.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
