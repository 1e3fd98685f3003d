"""Training of a script with a roster that changes at chosen steps, on one machine without a cluster: for `elasticctl
check`.
"""
