"""Stopping between iterations."""

import logging
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

_logger = logging.getLogger(__name__)
_SAME = 1.0  # seconds


class StopOnInterrupt:
    """Delays a signal until the iteration ends: the first asks to stop, the second stops at once.

    Inside the context, the first SIGINT (Ctrl-C), SIGTERM or SIGHUP (a closed terminal) only sets
    ``signal``. The training loop reads it between iterations, and so never saves a half-made update. A
    later one has its usual effect: SIGINT raises :class:`KeyboardInterrupt`, the others end the process.
    A signal within a second of the first counts as the same one, because a cluster that signals all
    processes of a job reaches a run directly and through its parent. Outside the main thread, where
    Python allows no handlers, nothing is delayed. Signals that the process ignores, such as SIGHUP
    under ``nohup``, stay ignored.

    Attributes:
        signal: the signal that asked to stop, or None.

    Examples:
        >>> import signal
        >>> from amber_trl.runs import StopOnInterrupt
        >>> with StopOnInterrupt() as stop:
        ...     for iteration in range(10):
        ...         if iteration == 3:
        ...             signal.raise_signal(signal.SIGINT)
        ...         if stop.requested:
        ...             break
        >>> iteration, stop.signal.name
        (3, 'SIGINT')
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._asked_at = 0.0
        self._earlier: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether one of the signals was received."""
        return self.signal is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._earlier[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal, self._asked_at = signal.Signals(number), time.monotonic()
            name = self.signal.name
            _logger.warning("%s: finishing this iteration; another one stops at once", name)
        elif time.monotonic() - self._asked_at > _SAME:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier.clear()
