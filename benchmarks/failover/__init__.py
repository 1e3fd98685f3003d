"""Failover time: from the leader's death until a standby leads."""
