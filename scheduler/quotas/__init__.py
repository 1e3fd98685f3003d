"""Quotas: what users and groups are guaranteed, what they may have at most, and who borrows what is idle (ElasticFlow 4.4)."""
