"""Deterministic simulation of a whole cluster in one process: controller, agents and workers under one seed (`make world`).

Theory of operation
-------------------
A *history* is one run of a simulated cluster. Time is virtual, a heap of events (`timeline`): nothing waits, nothing sleeps.
The state machines of controller, agent and worker are the product's own. Their surroundings are small models: processes that
are killed, stopped and continued (`process`), a network (`network`), a store (`disk`), NCCL and Gloo (`plane`), a user's
training script (`worker`).

A history is drawn first, as a list of *entries* (`plan`): jobs, faults, requests of users. All other randomness comes from one
stream per link and per process. So an entry can be left out without changing the others, and a failing history can be shrunk
(`history.shrink`).

The *oracle* (`oracle`) sees every event, and raises `Violation` when an invariant is broken. The state of a job is modelled as a
hash chain: all workers that have applied step s must have the same hash.

    plan       entries of a history                      drawing    a plan drawn from a seed
    disasters  plans in which several faults coincide    timeline   virtual time
    process    running, stopped, dead, restarted         network    delay, loss, duplicates, reordering, partitions
    disk       the controller's store and its faults     plane      collectives: complete, fail for some, hang
    controller, agent, worker                            the processes around the product's state machines
    faults     the effect of each fault                  oracle     the invariants
    stage      commands of scenarios                     scenarios  histories written by hand, as text
    history    one run, from seed to verdict; shrinking  campaign   many histories, in several processes
    operations durable writes of a process, counted      anywhere   one history, with one failing write per run
    etcd       a store that two controllers share        crash_anywhere   all runs of `anywhere`
    planted    known bugs that histories must find

The cluster is put together in four layers, each of which imports those before it: `ground` (what all processes share), `testbed`
(the controller and the servers), `cluster` (users, intruders, attackers), `world` (the course of a history).
"""
