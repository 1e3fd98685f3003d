"""The controller: a pure state machine that knows the cluster, and a daemon that performs its actions."""
