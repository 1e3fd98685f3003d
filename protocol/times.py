"""All times that depend on one another, in seconds, and the inequalities between them (`check`).

Times that a configuration or a job file sets have their defaults there; the limits of those defaults stand here.
"""

from __future__ import annotations

from dataclasses import dataclass

# ------------------------------------------------------------------------------------- which process counts silence

WATCH_INTERVAL_S = 1.0  # between the turns of a process that counts the silence of others
# Without a turn for so long, the process itself was stopped or starved: that time counts as silence of no peer
AWAY_S = 2.5

# ----------------------------------------------------------------------------------------------- the lease of a server

SERVER_LEASE_S = (
    10.0  # silence of an agent after which its server is lost, unless the controller's file sets another time
)
HEARTBEAT_INTERVAL_S = 1.0  # of an agent, unless its file sets another
LEAST_HEARTBEAT_INTERVAL_S = 0.05  # least value in an agent's file
MOST_HEARTBEAT_INTERVAL_S = 60.0  # greatest value in an agent's file
HEARTBEATS_PER_S = 400.0  # of all agents together: a controller of more servers asks each agent for fewer heartbeats
MOST_SERVER_LEASE_S = 3600.0  # greatest value in the controller's file
SILENT_INTERVALS = 3  # heartbeat intervals without an answer of the controller, after which an agent says hello again
CONNECTION_HEARTBEAT_S = 1.0  # of the connections between processes
# Of the connections of agents to their controller, which has a thousand of them
CONTROLLER_CONNECTION_HEARTBEAT_S = 2.0
CONNECTION_TIMEOUT_S = 5.0  # without a connection heartbeat, after which the connection is made again

# Of a controller, after which a client asks again, or asks another controller if there are several
ENDPOINT_SILENCE_S = 1.0
# An agent tries the next endpoint after a heartbeat interval without an answer to its hello (`agent.session`).

# ------------------------------------------------------------------------------------------------------ the controller

FIRST_BACK_OFF_S = 1.0  # of a job that has lost all workers, until it starts again
LONGEST_BACK_OFF_S = 30.0
FIRST_HOLD_S = 30.0  # of a job with newcomers that end at their start, until the job gets more GPUs again
LONGEST_HOLD_S = 960.0
CUT_OFF_TIMEOUT_S = 30.0  # for members of an order to hear of each other, once all of them stand ready to follow it
REST_S = 5.0  # for the other workers of a finished job to end by themselves
LEAVING_PATIENCE_S = 30.0  # for a worker outside every roster to leave by itself
LOG_TIMEOUT_S = 5.0  # for an agent to send a piece of a log
POLICY_RETRY_S = 30.0  # after a policy has raised, though no event has come since
JOBS_DECIDED_AT_ONCE = 1000  # up to this number of unfinished jobs the scheduler is asked at every event
DECISION_INTERVAL_PER_JOB_S = 1e-4  # above that number, at most once in so long for each job: with 10,000 once a second
STORE_RETRY_S = 1.0  # between two attempts to write, while the store cannot be written

# ---------------------------------------------------------------------------------- which of several controllers leads

# Without a renewal, after which another controller leads, unless the controllers' files set another time
LEADER_LEASE_S = 5
LEAST_LEADER_LEASE_S = 2  # least value in these files: etcd gives no shorter leases
MOST_LEADER_LEASE_S = 60
STALL_S = 30.0  # without a turn of its loop, after which a controller does not renew its leadership
CATCH_UP_S = 60.0  # for an elected controller to read all earlier records
HEARD_WITHIN = (
    # Of a server's lease: an agent that has spoken within it counts as heard. Above every allowed heartbeat interval
    0.5
)
HEARS_FEWER_FOR = 0.25  # of a server's lease: a leader that hears fewer agents than a standby resigns
BELIEVED_AGAIN_S = 600.0  # between two resignations of a leader because the same server reports a later term
TAKEOVER_LEASES = 2  # number of leases within which another controller leads


@dataclass(frozen=True)
class Leadership:
    """Times of an election (`leadership`), in seconds."""

    lease_s: int  # lease requested from the store
    renew_s: float  # between two renewals
    answer_s: float  # for the store to answer
    retry_s: float  # after an answer that did not come, until the store is asked again
    margin_s: float  # before the end of its lease, from which on a leader sends nothing
    stall_s: float
    catch_up_s: float
    rest_s: float  # of a leader that could not do its work, while others may lead


def leadership(lease_s: int) -> Leadership:
    """Return all times of an election among controllers with leases of `lease_s` seconds."""
    fifth_s = lease_s / 5
    return Leadership(
        lease_s=lease_s,
        renew_s=fifth_s,
        answer_s=fifth_s,
        retry_s=fifth_s / 4,
        margin_s=fifth_s,
        stall_s=max(STALL_S, 2.0 * lease_s),
        catch_up_s=max(CATCH_UP_S, 2.0 * lease_s),
        rest_s=2.0 * lease_s,
    )


# ------------------------------------------------------------------------------------------------------ a worker's start

START_TIMEOUT_S = 600.0  # from its start to `elastic.join()`, unless the job sets another time
IMAGE_START_TIMEOUT_S = 3600.0  # likewise, for a job with a container image, which a server may have to fetch first
LOAD_TIMEOUT_S = 3600.0  # from `elastic.join()` to the training loop: model, data
JOIN_NOTICE_S = 60.0  # after which a command that should call `elastic.join()` counts as one that does not
SILENT_SERVER_S = 300.0  # after a lost lease, until processes there that must not run twice count as ended

# ------------------------------------------------------------------------------------------------------- a worker's stop

STOP_GRACE_S = 5.0  # from SIGTERM to SIGKILL, for a worker that has nothing to save
STOP_AGAIN_S = 10.0  # after a worker should have ended, until its agent is asked again to stop it
RESEND_AFTER_S = 10.0  # after an order or a start without a sign of its arrival, until it is sent again
LEAST_SAVE_S = 30.0  # for the step in progress to end and a checkpoint to be written, before a worker is killed
MOST_SAVE_S = 3600.0
SAVE_MARGIN = 3.0  # times the durations of the last checkpoint and the longest step
SLOW_STORAGE_BYTES_S = 25e6  # assumed rate of writing a checkpoint, before one has been measured
SAVE_RETRY_S = 5.0  # until a preempted worker that could not save tries again, unless another worker does

# --------------------------------------------------------------------------------------- a server that cannot start workers

FIRST_SERVER_BACK_OFF_S = 5.0
LONGEST_SERVER_BACK_OFF_S = 300.0

# ------------------------------------------------------------------------------------------- a GPU that is slow for a job

FIRST_SLOW_BACK_OFF_S = 600.0  # until a job uses a GPU again that it has left
LONGEST_SLOW_BACK_OFF_S = 21_600.0
SLOW_FINDING_KEPT_S = 86_400.0  # how long what a job has found of a GPU counts for the operator

# ------------------------------------------------------------------------------------------------- a job that gets no further

DEATHS_IN_VAIN = 10  # consecutive restarts allowed after deaths by a signal, with no new step and no lost server

# ----------------------------------------------------------------------------------------------------- agent and controller

FIRST_HELLO_S = 3.0  # after a controller's start, for the first agent to have connected again
REFUSED_RETRY_S = 5.0  # between two hellos of an agent that the controller has refused
# From SIGTERM to SIGKILL by a worker's shim alone, if the agent that should kill the worker is gone
SHIM_GRACE_S = 60.0
START_PATIENCE_S = 60.0  # for a worker's process to be started: its directories are made, its record is written
EVENT_KEPT_S = 60.0  # at most, until an agent has written down how far the cluster's history is
ORDER_REPEAT_S = 2.0  # until an order is sent again to a worker that has not followed it
WORKER_SILENCE_S = 10.0  # of a worker, after which its agent kills it, unless the agent's file sets another time
LEAST_WORKER_SILENCE_S = 3.0  # least value in the agent's file
STARTING_PATIENCE = 10.0  # times that silence, for a worker that still loads its model and data
RECORD_PATIENCE_S = 60.0  # for a worker's shim to record how the worker ended, while the disk is full
RECORD_RETRY_S = 0.5  # between its attempts
USE_INTERVAL_S = 10.0  # between two samples of what workers use, unless the agent's file sets another time
MOST_USE_INTERVAL_S = 60.0  # greatest value in the agent's file
SAMPLES_OF_A_REPORT = 3  # after which an agent reports what its workers have used
USE_STALE_S = 300.0  # after a report of a worker's use, from which on the use is unknown
LEAST_IDLE_S = 10.0  # for GPUs to be idle, before anything is done about it
STATE_RETRY_S = 10.0  # until an agent tries again to write its own state, after its disk was full

# ------------------------------------------------------------------------------------------------- a worker's communicator

WORKER_RETRY_S = 1.0  # a message between workers is repeated this often until it is answered
RENDEZVOUS_TIMEOUT_S = 15.0  # for one value of another member, while a communicator is built
CONNECT_TIMEOUT_S = 120.0  # for the devices of all members to connect
ABORT_TIMEOUT_S = 10.0  # for the library to end a device's operations: measured 0.5 s for two groups that hang
WARM_UP_TIMEOUT_S = 60.0  # for the first operation of each kind on them
BUILD_TIMEOUT_S = 30.0  # for a communicator between CPUs, all in all
DEVICE_BUILD_TIMEOUT_S = 200.0  # and for one between devices
PREPARE_MARGIN_S = 10.0  # a leader waits so much longer than that for its members to report that they are prepared
UNREACHABLE_TIMEOUT_S = 600.0  # of failed attempts, after which a joining worker gives up

# ---------------------------------------------------------------------------------------------------- a worker's training

WORKER_HEARTBEAT_S = 0.5
LAST_REPORT_TIMEOUT_S = 5.0  # for the agent to acknowledge a worker's last status; then the worker ends without it
FIRST_STEP_TIMEOUT_S = 1800.0  # for a worker's own part of a step, before one has been measured
LEAST_STEP_TIMEOUT_S = 600.0  # storage may not answer for minutes, a compiler may run once more
STEP_TIMEOUT_FACTOR = 20.0  # times its measured parts
PAUSE_TIMEOUT_S = 3600.0  # for a script's own code between two steps, for reading and for writing a checkpoint
FIRST_PAUSE_S = 200.0  # assumed length of such a pause where none has been measured, if the job is preempted in it
STALL_TIMEOUT_S = 30.0  # at least, until members that all wait for each other take the network between them for cut
STALL_TIMEOUT_FACTOR = 10.0  # times the median of the last steps
SLOW_NETWORK_BYTES_S = (
    10e6  # least rate assumed of a network, where no step has been measured and for the transfer of a job's state
)
OTHERS_MARGIN_S = 60.0  # beyond the time that each of the others may take
COME_OUT_TIMEOUT_S = 60.0  # for a thread to return from a communicator that was abandoned
SUSPEND_PATIENCE_S = 10.0  # at least, for the step in progress of a preempted job, before it is given up
SUSPEND_PATIENCE_FACTOR = 1.5  # times the longest of the last steps


def lease_outlasts(server_lease_s: float, heartbeat_interval_s: float) -> bool:
    """Return whether a server survives the loss of one heartbeat. The two times come from the files of two daemons."""
    return server_lease_s > 2 * heartbeat_interval_s


def paced_interval_s(servers: int, server_lease_s: float) -> float:
    """Return the seconds between two heartbeats that a controller of `servers` servers asks of each agent.

    An agent with a longer interval of its own keeps it. Two heartbeats in a row may be lost without the loss of the
    server.
    """
    return min(servers / HEARTBEATS_PER_S, server_lease_s / (SILENT_INTERVALS + 1))


def others_timeout_s(step_timeout_s: float, pause_timeout_s: float) -> float:
    """Return how long (s) a worker waits for the others in a step: one of them may first be in a pause and then compute
    its part.
    """
    return pause_timeout_s + step_timeout_s + OTHERS_MARGIN_S


def suspend_patience_s(longest_step_s: float) -> float:
    """Return how long (s) the step in progress of a preempted job may take to end by itself."""
    return min(max(SUSPEND_PATIENCE_S, SUSPEND_PATIENCE_FACTOR * longest_step_s), MOST_SAVE_S / 2)


def check() -> None:
    """Raise AssertionError, naming the rule, if two of these times do not fit together."""
    rules = {
        "a heartbeat of an agent may be lost, and its server is not": lease_outlasts(
            SERVER_LEASE_S, HEARTBEAT_INTERVAL_S
        ),
        "what an agent says without being told otherwise may also be set": (
            LEAST_HEARTBEAT_INTERVAL_S <= HEARTBEAT_INTERVAL_S <= MOST_HEARTBEAT_INTERVAL_S
            and SERVER_LEASE_S <= MOST_SERVER_LEASE_S
        ),
        "for each heartbeat interval there is a lease": lease_outlasts(MOST_SERVER_LEASE_S, MOST_HEARTBEAT_INTERVAL_S),
        "an agent says hello again before its server is lost": SILENT_INTERVALS * HEARTBEAT_INTERVAL_S < SERVER_LEASE_S,
        "an agent that is asked for fewer heartbeats says hello again before its server is lost": (
            SILENT_INTERVALS * paced_interval_s(10**6, SERVER_LEASE_S) < SERVER_LEASE_S
        ),
        "an agent has had an answer to another heartbeat before it says hello again": SILENT_INTERVALS >= 2,
        "a broken connection is made anew before a server is lost": (
            2 * max(CONNECTION_HEARTBEAT_S, CONTROLLER_CONNECTION_HEARTBEAT_S) < CONNECTION_TIMEOUT_S < SERVER_LEASE_S
        ),
        "an agent has asked another controller before its server is lost": (
            (SILENT_INTERVALS + 2) * HEARTBEAT_INTERVAL_S < SERVER_LEASE_S
        ),
        "an absence of the controller is noticed before a server is lost": AWAY_S < SERVER_LEASE_S,
        "an agent has said a heartbeat before a controller that has started goes without": (
            HEARTBEAT_INTERVAL_S < FIRST_HELLO_S < SERVER_LEASE_S
        ),
        "one renewal of a leader's lease may be lost, and it goes on leading": all(
            2 * (times.renew_s + times.answer_s) <= lease_s - times.margin_s + 1e-9
            for lease_s in (LEAST_LEADER_LEASE_S, LEADER_LEASE_S, MOST_LEADER_LEASE_S)
            for times in (leadership(lease_s),)
        ),
        "a leader that agents do not reach gives up its leadership before their servers": HEARD_WITHIN + HEARS_FEWER_FOR
        < 1,
        "an agent that is heard is heard within one heartbeat": lease_outlasts(1.0, HEARD_WITHIN - 1e-9),
        "a standby leads before the agents of a dead leader would be given up": (
            TAKEOVER_LEASES * LEADER_LEASE_S <= SERVER_LEASE_S
        ),
        "the leader's lease by default may also be set": LEAST_LEADER_LEASE_S <= LEADER_LEASE_S <= MOST_LEADER_LEASE_S,
        "two turns are left out before a process takes itself for absent": 2 * WATCH_INTERVAL_S < AWAY_S,
        "a worker that saves has more time than one that has nothing to save": STOP_GRACE_S < LEAST_SAVE_S,
        "an agent kills a worker before its shim does, which knows no reason": STOP_GRACE_S < SHIM_GRACE_S,
        "the least time for saving is less than the most": LEAST_SAVE_S < MOST_SAVE_S,
        "a worker that is preempted in its first evaluation has more than the least time": (
            LEAST_SAVE_S < SAVE_MARGIN * FIRST_PAUSE_S < MOST_SAVE_S
        ),
        "a worker that could not save tries again before it is killed": 2 * SAVE_RETRY_S < LEAST_SAVE_S,
        "a job's first back-off is shorter than the longest": FIRST_BACK_OFF_S < LONGEST_BACK_OFF_S,
        "a job is first held back for a shorter time than at last": FIRST_HOLD_S < LONGEST_HOLD_S,
        "a server's first back-off is shorter than the longest": FIRST_SERVER_BACK_OFF_S < LONGEST_SERVER_BACK_OFF_S,
        "all that building a communicator consists of fits into the time for it": (
            RENDEZVOUS_TIMEOUT_S + CONNECT_TIMEOUT_S + WARM_UP_TIMEOUT_S < DEVICE_BUILD_TIMEOUT_S
            and RENDEZVOUS_TIMEOUT_S < BUILD_TIMEOUT_S
        ),
        "a leader hears that a communicator failed before it gives the attempt up": PREPARE_MARGIN_S > WORKER_RETRY_S,
        "a newcomer that gives up has failed more than once": 2 * DEVICE_BUILD_TIMEOUT_S < UNREACHABLE_TIMEOUT_S,
        "what workers say to each other is repeated often before they count as cut off": (
            10 * WORKER_RETRY_S < CUT_OFF_TIMEOUT_S and 10 * WORKER_HEARTBEAT_S < CUT_OFF_TIMEOUT_S
        ),
        "a worker has said whether it follows an order before that is repeated": WORKER_HEARTBEAT_S < ORDER_REPEAT_S,
        "an order is repeated often before members count as cut off": 10 * ORDER_REPEAT_S < CUT_OFF_TIMEOUT_S,
        "a worker may be silent for more than one heartbeat": 2 * WORKER_HEARTBEAT_S <= LEAST_WORKER_SILENCE_S,
        "an agent that was away for a moment does not take that for a worker's silence": (
            AWAY_S + WORKER_HEARTBEAT_S <= LEAST_WORKER_SILENCE_S
        ),
        "a worker's silence by default may also be set": LEAST_WORKER_SILENCE_S <= WORKER_SILENCE_S,
        "a worker that still loads may be silent for longer": STARTING_PATIENCE > 1.0,
        "the use of a worker is known from one report to the next": (
            SAMPLES_OF_A_REPORT * MOST_USE_INTERVAL_S + MOST_HEARTBEAT_INTERVAL_S < USE_STALE_S
        ),
        "how a worker ended is tried to be written down more than once": 10 * RECORD_RETRY_S < RECORD_PATIENCE_S,
        "a worker's last status can be lost and repeated": 2 * WORKER_HEARTBEAT_S < LAST_REPORT_TIMEOUT_S,
        "a step that is slow for once is not taken for one that hangs": (
            LEAST_STEP_TIMEOUT_S < FIRST_STEP_TIMEOUT_S and STEP_TIMEOUT_FACTOR > 10.0
        ),
        "the one that hangs is noticed before those who wait for it give up": (
            others_timeout_s(FIRST_STEP_TIMEOUT_S, PAUSE_TIMEOUT_S) > PAUSE_TIMEOUT_S + FIRST_STEP_TIMEOUT_S
        ),
        "connections that the network has interrupted for a moment may go on by themselves": (
            2 * CONNECTION_TIMEOUT_S < STALL_TIMEOUT_S < LEAST_STEP_TIMEOUT_S
            and CUT_OFF_TIMEOUT_S <= STALL_TIMEOUT_S
            and STALL_TIMEOUT_FACTOR > 2.0
        ),
        "a server that only some servers do not reach is given more time than one that the controller does not reach": (
            SERVER_LEASE_S < CUT_OFF_TIMEOUT_S
        ),
        "a preempted worker gives its step up before it is killed": (
            SUSPEND_PATIENCE_S < LEAST_SAVE_S and SUSPEND_PATIENCE_FACTOR < SAVE_MARGIN
        ),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    assert not broken, "; ".join(broken)
