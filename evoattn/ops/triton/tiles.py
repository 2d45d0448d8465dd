"""Tile sizes of the attention kernels.

They were chosen by compiling every kernel for each architecture: large ones, as long as they spill no more than a few registers and fit the
shared memory of every card of their kind (``python -m tests.ops.compile_kernels``). No card was at hand to measure on. Nothing is tuned at
run time.
"""

from typing import NamedTuple


class Tile(NamedTuple):
    """Queries (m) and keys (n) of one tile of logits; warps of a program, and stages of its software pipeline."""

    m: int
    n: int
    warps: int
    stages: int


class Tiles(NamedTuple):
    forward: Tile
    backward_queries: Tile
    backward_keys: Tile
    backward_pair_bias: Tile


# By the padded width of a head, the larger of queries' and values': tables hold the widths up to which a line serves.
LARGE = {  # compute capability 9 and 10: 227 KiB of shared memory, products of whole groups of warps
    64: Tiles(Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), Tile(128, 64, 8, 2)),
    128: Tiles(Tile(128, 32, 8, 2), Tile(128, 32, 8, 2), Tile(64, 32, 4, 2), Tile(64, 32, 4, 2)),
}
SMALL = {  # compute capability 8 and 12: cards with 99 KiB among them
    32: Tiles(Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 64, 4, 2), Tile(64, 64, 4, 2)),
    64: Tiles(Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 64, 4, 2), Tile(64, 32, 4, 2)),
    128: Tiles(Tile(64, 32, 4, 2), Tile(64, 32, 4, 2), Tile(64, 32, 8, 2), Tile(64, 32, 4, 2)),
}
FLOAT32 = {  # every card
    64: Tiles(Tile(32, 32, 4, 2), Tile(32, 32, 4, 2), Tile(32, 32, 4, 2), Tile(32, 32, 4, 1)),
    128: Tiles(Tile(32, 32, 8, 1), Tile(16, 16, 8, 1), Tile(32, 16, 8, 1), Tile(32, 16, 8, 1)),
}


def tile(kernel: str, width: int, itemsize: int, capability: tuple[int, int]) -> Tile:
    """For one kernel of :mod:`evoattn.ops.triton.attention_kernels`, heads of up to 128, and numbers of 4 or 2 bytes."""
    table = FLOAT32 if itemsize == 4 else LARGE if capability[0] in (9, 10) else SMALL
    line = table[min(limit for limit in table if width <= limit)]
    found: Tile = getattr(line, kernel)
    return found
