"""Transforms of stored batches."""

from amber_trl.transforms._metrics import DistributionMetric, MetricName, StalenessMetric
from amber_trl.transforms.controller import DropFactorController
from amber_trl.transforms.ledger import Reason
from amber_trl.transforms.staleness import ISStalenessFilter

__all__ = [
    "DistributionMetric",
    "DropFactorController",
    "ISStalenessFilter",
    "MetricName",
    "Reason",
    "StalenessMetric",
]
