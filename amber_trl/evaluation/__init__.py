"""Measures of a training run."""

from amber_trl.evaluation.scores import final_score, speed_score

__all__ = ["final_score", "speed_score"]
