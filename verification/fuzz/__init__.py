"""Hostile input: what a peer may send that no correct peer sends, and whether anybody minds.

Theory of operation
-------------------
`grammar` makes plain values from the protocol's own types, so that every kind of message is covered as soon as it exists, with
names that are in use (`Words`), extreme numbers, and every optional field now there, now not. `mutate` spoils them: as trees
(wrong types, missing and unknown fields, unknown tags, deep nesting, giant names), as bytes (truncated, flipped, lengths that are
not there, text that is no UTF-8), and as frames (too many, empty ones, identities that are none). A message is spoiled often
enough that most are refused, and seldom enough that many get through to the machines.

Campaigns use them. `sockets` sends them to a running controller and a running agent, as processes with their own sockets,
and watches them from outside (`subjects`): they must not end, must go on answering, and their memory, descriptors and logs must
stay within bounds. `absurd` gives valid messages to the controller's machine under every policy. `documents` spoils files: job
files, traces, policies, configurations. `flood` says what is valid, and too much of it, to a controller without processor.

Everything follows from a seed. The campaign's name and the seed are enough to play the same input again, though a process that
runs meanwhile is not repeated to the microsecond.
"""
