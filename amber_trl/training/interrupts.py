"""Stopping between iterations."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


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

    def _restore(self) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._earlier)
            self._installed = False
