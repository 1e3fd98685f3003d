"""The controller's state: one store for each kind.

`servers`, `jobs`, `experience`, `planning`, `history` and `clients` each own a part of the state. Their methods record
changes in the effects of the event at hand, and request a scheduling decision (`planning.Planning.request`) where a
change can alter one. No other module changes a store. A job (`jobs.job`), and any other object of the state, is changed
by its own methods only.
"""
