"""EditFoundry: from photographs to instruction-based edit datasets, editors, judges and benchmarks."""

__version__ = "0.1.0"
