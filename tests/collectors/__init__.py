"""Tests of amber_trl.collectors."""
