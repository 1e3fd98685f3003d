"""Fuzzing with hostile input: messages that no correct peer sends, and a check that the receiving process survives them.

Theory of operation
-------------------
`grammar` generates plain values from the protocol's own types, so every kind of message is covered as soon
as it exists. It uses names that are in use (`Words`) and extreme numbers, and includes or omits each optional field at random.
`mutate` corrupts these values on three levels. Trees: wrong types, missing and unknown fields, unknown tags, deep nesting, huge
names. Bytes: truncation, bit flips, false lengths, invalid UTF-8. Frames: too many, empty ones, invalid identities. The rate of
corruption is such that most messages are refused, yet many reach the machines.

Campaigns use them. `sockets` sends them to a running controller and a running agent, which are processes with their own sockets,
and observes these from outside (`subjects`): they must not exit, must keep answering, and must keep memory, descriptors and logs
within bounds. `absurd` passes valid messages to the controller's machine under every policy. `documents` corrupts files: job
files, traces, policies, configurations. `flood` sends too many valid messages to a controller that is starved of processor time.

All input follows from a seed. The campaign's name and the seed reproduce it, although the timing of a running process is not
reproduced to the microsecond.
"""
