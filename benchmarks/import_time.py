"""Seconds that ``import evoattn`` takes over ``import torch``, each in a fresh interpreter.

python -m benchmarks.import_time
"""

import statistics
import subprocess
import sys

from benchmarks.common import report

CODE = "import time, torch; start = time.perf_counter(); import evoattn; print(time.perf_counter() - start)"


def main() -> None:
    times = [float(subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout) for _ in range(6)][1:]
    report("import_time", [{"case": "import evoattn after import torch", "median_s": statistics.median(times), "worst_s": max(times)}])


if __name__ == "__main__":
    main()
