"""What one controller bears: many agents, jobs and requests over real sockets (`python -m benchmarks.control`)."""
