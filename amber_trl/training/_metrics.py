"""The output of a loss module: the sum to minimise, and the metrics as one tensor."""

import functools
import operator
from collections.abc import Sequence

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase


def total_loss(emitted: TensorDictBase) -> torch.Tensor:
    """Adds up the ``loss_*`` entries that a loss module emitted, to shape ``[]``."""
    terms = {key: value for key, value in emitted.items() if key.startswith("loss_")}
    if not terms:
        raise KeyError(
            f"the loss emitted {sorted(emitted.keys())}, and no key starts with 'loss_': "
            "name the terms to minimise 'loss_...', as TorchRL's losses do"
        )
    for key, term in terms.items():
        if term.numel() != 1:
            raise ValueError(
                f"{key} has shape {tuple(term.shape)} and must be a scalar: "
                "build the loss with reduction='mean' or 'sum'"
            )
    return functools.reduce(operator.add, terms.values()).reshape(())


class MetricPacker:
    """Packs an update's metrics into one vector, which a compiled graph returns at little cost.

    ``example`` is what an update on ``rows`` frames returns, with batch size ``[]``.
    """

    def __init__(self, example: TensorDictBase, rows: int) -> None:
        self.keys: list[NestedKey] = []
        self._forms: list[tuple[torch.Size, torch.dtype]] = []
        self._dtype = torch.get_default_dtype()
        for key, value in example.items(True, True):
            if rows in value.shape:
                raise ValueError(
                    f"the loss emits {key!r} with shape {tuple(value.shape)} for {rows} frames, "
                    "and the compiled step returns only metrics whose shape does not depend on "
                    "the number of frames: use compile=False"
                )
            self.keys.append(key)
            self._forms.append((value.shape, value.dtype))
            self._dtype = torch.promote_types(self._dtype, value.dtype)

    def pack(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """The values of ``keys``, in this order, as one floating vector ``[values]``."""
        return torch.cat([value.reshape(-1).to(self._dtype) for value in values])

    def unpack(self, packed: torch.Tensor) -> TensorDict:
        """The metrics, unpacked from ``[..., values]``, with that batch size."""
        batch = packed.shape[:-1]
        columns = packed.split([shape.numel() for shape, _ in self._forms], -1)
        forms = zip(columns, self._forms, strict=True)
        values = [column.reshape(batch + shape).to(dtype) for column, (shape, dtype) in forms]
        return TensorDict(dict(zip(self.keys, values, strict=True)), batch_size=batch)
