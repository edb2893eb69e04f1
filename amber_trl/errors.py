"""Errors that several parts of the library raise."""

__all__ = ["NonFiniteDataError"]


class NonFiniteDataError(ValueError):
    """Data of an environment or policy are NaN, infinite or too large; nothing was done with them.

    Raised by :meth:`~amber_trl.data.MultiBatchReplayBuffer.extend` and by
    :meth:`~amber_trl.modules.ObservationNormalizer.update`, for a caller that tells bad data from a
    bad call.

    Examples:
        >>> from amber_trl.errors import NonFiniteDataError
        >>> issubclass(NonFiniteDataError, ValueError)
        True
    """
