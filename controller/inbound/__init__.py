"""Handling of events: messages of agents and workers change the controller's state."""
