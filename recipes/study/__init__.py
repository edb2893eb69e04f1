"""What ``reproduce_paper.py`` is made of."""
