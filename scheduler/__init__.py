"""Choice of the number of GPUs of each job, and of the GPUs: one pipeline, many policies. Pure.

The controller, the simulator and `elasticctl` use it.
"""
