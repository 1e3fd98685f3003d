"""A whole cluster in one process: the real machines of controller, agents and workers under one seed (`make world`).

Theory of operation
-------------------
A *history* is one run of a simulated cluster. Time is virtual, a heap of events (`timeline`): nothing waits, nothing sleeps.
The machines are the product's own. What stands around them in a real cluster is written here once more, in a small form:
processes that are killed, stopped and continued (`process`), a network (`network`), a store (`disk`), NCCL and Gloo
(`plane`), a user's training script (`worker`).

What will happen is drawn first, as a list of *entries* (`plan`): jobs, faults, requests of users. Everything else that is random
has a stream of its own for each link and each process. So an entry can be left out and the others still do the same: that is
how a failing history is made short (`history.shrink`).

The *oracle* (`oracle`) knows everything and tells nobody. It is told of each event, and raises `Violation` when an invariant is
broken. A job's state is a hash chain: whoever has applied step s must have the same number.

    plan       what will happen, drawn from a seed       timeline   virtual time
    disasters  the same, for faults that meet
    process    running, stopped, dead, started anew      network    delay, loss, copies, order, cuts
    disk       the controller's store and its faults     plane      collectives: complete, fail for some, hang
    controller, agent, worker                            the shells around the machines
    faults     what each fault does                      oracle     what must be true
    cluster    all of it together                        history    one run, from seed to verdict; shrinking
    stage      what the lines of such texts mean         scenarios  histories written by hand, as text
    campaign   many histories, in several processes      planted    bugs that they must find
    operations what survives a process is written in     anywhere   one history, each of whose operations fails once
    etcd       a store that two controllers share        crash_anywhere   many of those
"""
