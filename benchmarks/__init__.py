"""Timings and memory, never run by the tests: ``python -m benchmarks.attention``. Each checks parity before it measures."""
