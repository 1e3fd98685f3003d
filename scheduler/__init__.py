"""Who gets how many GPUs, and which: one pipeline, many policies. The controller, the simulator and `elasticctl` use it. Pure."""
