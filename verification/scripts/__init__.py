"""The same small job in each framework, alone and through histories (`make verify-scripts`; docs/design/bits.md).

A *history* is one training run during which workers join, leave, move and are killed, all GPUs are taken away and given back, or
all workers are lost and the job begins again from a checkpoint. Whatever happens, the result must be that of the script alone:
parameters, buffers and optimizer state bit for bit, everything logged, and each sample once an epoch.

The scripts are those of `examples/frameworks`. Workers are real processes that talk over real sockets; the controller and the
agent are the product's machines, driven in one process (`verification.bits.station`).

    acts       what happens in a history, from a seed     course     one history: drives the job through its acts
    worker     a worker's process                         samples    whether each sample was used once an epoch
    table      the verdicts as a table
"""
