"""Long checks of the main recipe, run by hand: ``python -m tests.robustness.exact_resume`` etc."""
