"""Quotas: guarantees and limits of users and groups, and the borrowing of idle GPUs (ElasticFlow 4.4)."""
