"""Random histories of a job, and whether one bit of the result differs (`make verify-bits`; docs/design/bits.md).

A *history* is one training run, during which workers join, leave, migrate and are killed, as a seed says. Workers are real
processes that talk over real sockets. The controller and the agent are the product's pure machines (`controller.intake`,
`controller.reconcile`, `agent.machine`), driven in one process, so that a target can be set at a given step and a worker's death
is heard of at once: a history of two hundred steps takes a few seconds.

    training   what is trained               points     where in a step a worker can be killed
    story      what happens, from a seed     worker     a worker's process, with points in it
    station    controller, agent, processes  nursery    starts workers quickly, by fork
    history    one training run              verdict    whether it went as it must, bit for bit
    ddp        the same training under DistributedDataParallel
"""
