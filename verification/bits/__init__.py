"""Random histories of a job, after which no bit of the result may differ (`make verify-bits`; docs/design/bits.md).

A *history* is one training run during which workers join, leave, migrate and are killed, as determined by a seed. Workers are
real processes that communicate over real sockets. The controller and the agent are the product's pure machines
(`controller.inbound`, `controller.reconcile`, `agent.machine`), driven in one process. So a target can be set at a given step,
and the end of a worker is noticed at once: a history of two hundred steps takes a few seconds.

    training   the models and training loop      points     places in a step where a worker can be killed
    story      the events, from a seed           worker     a worker's process, with points in it
    station    controller, agent, processes      nursery    starts workers quickly, by fork
    history    one training run                  verdict    comparison of the result, bit for bit
    ddp        the same training under DistributedDataParallel
"""
