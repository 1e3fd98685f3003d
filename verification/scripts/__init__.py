"""The same small job in each framework, alone and in histories with faults (`make verify-scripts`; docs/design/bits.md).

A *history* is one training run during which workers join, leave, move and are killed, all GPUs are taken away and given back,
or all workers are lost and the job restarts from a checkpoint. In every case the result must be that of the script alone:
parameters, buffers and optimizer state bit for bit, everything logged, and each sample once per epoch.

The scripts are those of `examples/frameworks`. Workers are real processes that communicate over real sockets; the controller and
the agent are the product's machines, driven in one process (`verification.bits.station`).

    acts       the events of a history, from a seed      course     one history: drives the job through its acts
    worker     a worker's process                        samples    checks that each sample was used once per epoch
    table      the verdicts as a table
"""
