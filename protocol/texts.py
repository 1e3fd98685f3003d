"""Words that all processes put into their sentences for people."""

from __future__ import annotations


def gpu_count(count: int) -> str:
    """ "1 GPU", "2 GPUs"."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
