"""Errors that more than one room raises."""

from __future__ import annotations

__all__ = ["NonFiniteDataError"]


class NonFiniteDataError(ValueError):
    """What an environment or a policy gave is NaN, infinite or too large; nothing was made of it.

    Raised by :meth:`~amber_trl.data.MultiBatchReplayBuffer.extend` and by
    :meth:`~amber_trl.modules.ObservationNormalizer.update`, for a caller that tells bad data from a
    bad call.

    Examples:
        >>> from amber_trl.errors import NonFiniteDataError
        >>> issubclass(NonFiniteDataError, ValueError)
        True
    """
