"""The controller's state: one store for each kind, the only writer of its fields.

`servers`, `jobs`, `experience`, `planning`, `history` and `clients` each own a part of the state, record its changes in the
effects of the event at hand, and request a scheduling decision (`planning.Planning.request`) where a change can alter one.
"""
