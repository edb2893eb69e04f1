"""Stopping between iterations."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_logger = logging.getLogger(__name__)


class StopOnInterrupt:
    """Lets Ctrl-C finish the iteration: the first asks to stop, the second stops at once.

    Inside the context the first SIGINT only sets ``requested``, which the training loop reads
    between iterations, so that what it saves is never a half-made update. The first also restores
    the earlier handler, so that a second one raises :class:`KeyboardInterrupt`. Outside the main
    thread, where Python allows no handlers, it does nothing.

    Examples:
        >>> import signal
        >>> from amber_trl.training import StopOnInterrupt
        >>> with StopOnInterrupt() as stop:
        ...     for iteration in range(10):
        ...         if iteration == 3:
        ...             signal.raise_signal(signal.SIGINT)
        ...         if stop.requested:
        ...             break
        >>> iteration
        3
    """

    def __init__(self) -> None:
        self.requested = False
        self._earlier: Any = None
        self._installed = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._earlier = signal.signal(signal.SIGINT, self._request)
            self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()
        _logger.warning("finishing this iteration; Ctrl-C once more stops at once")

    def _restore(self) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._earlier)
            self._installed = False


@contextmanager
def shielded_children() -> Iterator[None]:
    """Lets no Ctrl-C reach the processes started inside, such as compilers.

    A terminal sends it to all of them, and a compiler that dies fails the compilation. This
    process gets it at the end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
