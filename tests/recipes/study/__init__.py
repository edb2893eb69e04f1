"""Tests of the study: reading its runs, statistics, tables, figures and the page."""
