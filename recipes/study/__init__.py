"""The parts of ``reproduce_paper.py`` and ``report_study.py``."""
