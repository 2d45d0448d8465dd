"""Fused kernels written in Triton: attention with the gradient of the pair bias, and the triangle multiplicative update."""

from evoattn.ops.triton.attention import TRITON

__all__ = ["TRITON"]
