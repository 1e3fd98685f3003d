"""What has happened: messages of agents and workers, taken into what is known."""
