"""The comparators of the paper's appendix: TRPO and ACER."""
