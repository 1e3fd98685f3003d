"""How fast a standby leads after the leader's death."""
