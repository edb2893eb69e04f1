"""Tests of amber_trl.envs."""
