"""Optimizer state that is divided among a job's workers (`sharding: optimizer`): docs/sharding.md, and docs/design/runtime.md,
"Divided optimizer state".
"""
