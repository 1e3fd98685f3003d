"""Load test of one controller: many agents, jobs and requests over real sockets (`python -m benchmarks.control`)."""
