"""Warm processes: processes that have imported torch, from which workers are forked instead of started."""
