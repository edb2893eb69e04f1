"""The programs that ``benchmark_throughput.py`` measures, and how it measures them."""
