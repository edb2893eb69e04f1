"""Errors that several parts of the library raise."""

__all__ = ["NonFiniteDataError"]


class NonFiniteDataError(ValueError):
    """Data from an environment or policy are NaN, infinite or too large, and were not used.

    Raised by :meth:`~amber_trl.data.MultiBatchReplayBuffer.extend`, for example, or the ``update`` of
    :class:`~amber_trl.modules.ObservationNormalizer`, so that callers can distinguish bad data from a
    bad call.

    Examples:
        >>> from amber_trl.errors import NonFiniteDataError
        >>> issubclass(NonFiniteDataError, ValueError)
        True
    """
