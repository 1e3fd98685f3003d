"""Choice of each job's number of GPUs, and of the GPUs: one pipeline, many policies, for controller, simulator and
`elasticctl`. Pure."""
