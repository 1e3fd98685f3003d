"""Parts of a divided optimizer state (ZeRO-1): which optimizers, which elements, which norm. No training uses them yet.

docs/design/runtime.md, "Divided optimizer state", says what is decided and what is missing.
"""
