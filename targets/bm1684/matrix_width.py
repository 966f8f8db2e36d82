"""W of a matrix in the matrix layout: cycles first, then bytes of each NPU."""

from __future__ import annotations

from npuc.targets.bm1684 import timing
from npuc.targets.bm1684.local_memory import ceil_div, matrix_bytes
from npuc.targets.bm1684.machine import Machine


def best_width(rows: int, K: int, N: int, machine: Machine) -> int:
    """The W of a right matrix (K, N)."""

    def cost(W: int) -> tuple[int, int, int]:
        return (
            timing.matmul(rows, K, N, W, 0, False, False, machine),
            matrix_bytes(K, N, W, 0, machine),
            W,
        )

    return min(range(ceil_div(N, 4095), N + 1), key=cost)
