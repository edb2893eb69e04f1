"""What benchmark_throughput.py measures, and how."""
