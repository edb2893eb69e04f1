"""Stopping between iterations."""

import logging
import signal
import threading
from types import FrameType
from typing import Any, Self

_logger = logging.getLogger(__name__)


class StopOnInterrupt:
    """Delays a signal until the iteration ends: the first asks to stop, the second stops at once.

    Inside the context, the first SIGINT (Ctrl-C), SIGTERM or SIGHUP (a closed terminal) only sets
    ``signal``. The training loop reads it between iterations, and so never saves a half-made update. The
    first signal also restores the earlier handlers, so that a second one has its usual effect: SIGINT
    raises :class:`KeyboardInterrupt`, the others end the process. Outside the main thread, where Python
    allows no handlers, it does nothing. Signals that the process ignores, such as SIGHUP under
    ``nohup``, stay ignored.

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
        self.signal = signal.Signals(number)
        self._restore()
        _logger.warning("%s: finishing this iteration; another one stops at once", self.signal.name)

    def _restore(self) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier.clear()
