"""Health of a server and its GPUs: from sensor readings to reported troubles."""

from __future__ import annotations

from typing import Any

import pytest

from elasticd.agent import xids
from elasticd.agent.health import (
    MOST_CASES,
    CheckFailed,
    DiskReading,
    DisksRead,
    DriverLooked,
    Foreign,
    GpuReading,
    GpusRead,
    Health,
    HealthTick,
    LimitsTried,
    Rules,
    XidSeen,
)
from elasticd.protocol.model import Severity, Trouble

WELL = GpuReading(uncorrected=0, pending=False, remap_failed=False, throttle=0, memory_bytes=100 << 20)


def told(health: Health) -> dict[tuple[int | None, str], Severity]:
    return {(one.gpu, one.code): one.severity for one in health.troubles()}


def look(health: Health, now: float, reading: GpuReading = WELL, gpu: int = 0) -> bool:
    return health.handle(now, GpusRead({gpu: reading}))


def reading(**changes: Any) -> GpuReading:
    return GpuReading(**{**vars(WELL), **changes})


# --------------------------------------------------------------------------------------------------------------------- XIDs


@pytest.mark.parametrize(
    ("xid", "severity"),
    [
        (79, Severity.STOP),
        (48, Severity.STOP),
        (95, Severity.STOP),
        (119, Severity.MOVE_AWAY),
        (109, Severity.MOVE_AWAY),
        (62, Severity.MOVE_AWAY),
        (74, Severity.NO_NEW_WORK),
        (54, Severity.NO_NEW_WORK),
        (13, Severity.NOTE),
        (31, Severity.NOTE),
        (43, Severity.NOTE),
        (63, Severity.NOTE),
        (94, Severity.NOTE),
        (100_000, Severity.NOTE),
    ],
)
def test_an_xid_counts_as_the_table_says(xid: int, severity: Severity):
    health = Health(Rules())
    assert health.handle(10.0, XidSeen(3, xid))
    assert told(health) == {(3, f"xid-{xid}"): severity}
    assert health.troubles()[0].since_s == 10.0
    assert f"XID {xid}" in health.troubles()[0].text


def test_of_the_sources_that_disagree_one_is_followed():
    rows = [row for row in xids.TABLE if 109 in row.xids]
    assert {row.source for row in rows} == {xids.Source.CATALOG, xids.Source.GCM}
    assert [row.source for row in rows if row.followed] == [xids.Source.CATALOG]
    numbers = [xid for row in xids.TABLE if row.followed for xid in row.xids]
    assert len(numbers) == len(set(numbers)), "one row counts"
    assert {xid for row in xids.TABLE for xid in row.xids} == set(numbers), "and each number has one"


def test_an_operator_overrules_the_table():
    health = Health(Rules(xid_actions={31: Severity.MOVE_AWAY, 79: Severity.NOTE}))
    health.handle(0.0, XidSeen(0, 31))
    health.handle(0.0, XidSeen(1, 79))
    assert told(health) == {(0, "xid-31"): Severity.MOVE_AWAY, (1, "xid-79"): Severity.NOTE}


def test_an_xid_that_calls_for_a_reset_stays_whatever_later_looks_say():
    health = Health(Rules())
    health.handle(0.0, XidSeen(0, 119))
    for now in (10.0, 1e6):
        look(health, now)
        assert told(health) == {(0, "xid-119"): Severity.MOVE_AWAY}


def test_an_xid_of_an_application_is_shown_for_a_while():
    health = Health(Rules(note_s=100.0))
    health.handle(0.0, XidSeen(0, 13))
    health.handle(50.0, XidSeen(0, 13))
    assert health.next_deadline() == 150.0
    assert not health.handle(149.0, HealthTick())
    assert health.handle(150.0, HealthTick())
    assert told(health) == {}


def test_a_gpu_that_was_lost_and_is_back_has_been_reset_and_is_on_probation():
    health = Health(Rules(probation_s=60.0))
    health.handle(0.0, XidSeen(0, 79))
    look(health, 1.0, GpuReading(lost="GPU is lost"))
    assert told(health) == {(0, "gpu-lost"): Severity.STOP, (0, "xid-79"): Severity.STOP}
    look(health, 100.0)
    assert told(health) == {(0, "gpu-lost"): Severity.NO_NEW_WORK, (0, "xid-79"): Severity.NO_NEW_WORK}
    assert "on probation" in health.troubles()[0].text
    health.handle(160.0, HealthTick())
    assert told(health) == {}


# --------------------------------------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("changes", "code", "severity"),
    [
        ({"uncorrected": 2}, "ecc-uncorrected", Severity.STOP),
        ({"pending": True}, "ecc-pending", Severity.NO_NEW_WORK),
        ({"remap_failed": True}, "remap-failed", Severity.MOVE_AWAY),
        ({"recovery": 1}, "recovery-action", Severity.MOVE_AWAY),
        ({"recovery": 99}, "recovery-action", Severity.NO_NEW_WORK),
        ({"foreign": (Foreign(4242, "python3", 1 << 30),)}, "foreign-process", Severity.NO_NEW_WORK),
        ({"lost": "GPU is lost"}, "gpu-lost", Severity.STOP),
    ],
)
def test_a_condition_bars_as_long_as_it_lasts_and_for_its_probation(
    changes: dict[str, Any], code: str, severity: Severity
):
    health = Health(Rules(probation_s=60.0))
    assert look(health, 0.0, reading(**changes))
    assert told(health) == {(0, code): severity}
    assert not look(health, 1000.0, reading(**changes))
    assert health.troubles()[0].since_s == 0.0
    assert look(health, 2000.0)
    assert told(health) == {(0, code): Severity.NO_NEW_WORK}
    assert health.next_deadline() == 2060.0
    assert look(health, 2060.0)
    assert told(health) == {}


def test_what_the_driver_does_not_tell_says_nothing():
    health = Health(Rules())
    look(health, 0.0, reading(uncorrected=1, pending=True))
    look(health, 10.0, GpuReading(memory_bytes=100 << 20))
    assert set(told(health).values()) == {Severity.STOP, Severity.NO_NEW_WORK}, "neither is known to be over"


def test_probation_is_longer_each_time_up_to_a_bound_and_short_again_after_a_day():
    health = Health(Rules(probation_s=60.0, longest_probation_s=200.0))
    now, lengths = 0.0, []
    for _ in range(4):
        look(health, now, reading(pending=True))
        look(health, now + 1.0)
        due = health.next_deadline()
        assert due is not None
        lengths.append(due - now - 1.0)
        look(health, due)
        now = due + 10.0
    assert lengths == [60.0, 120.0, 200.0, 200.0]
    now += 90_000.0
    look(health, now)
    look(health, now, reading(pending=True))
    look(health, now + 1.0)
    assert health.next_deadline() == now + 61.0


def test_what_comes_back_during_its_probation_counts_as_before():
    health = Health(Rules(probation_s=60.0))
    look(health, 0.0, reading(uncorrected=1))
    look(health, 10.0)
    look(health, 20.0, reading(uncorrected=1))
    assert told(health) == {(0, "ecc-uncorrected"): Severity.STOP}
    assert health.troubles()[0].since_s == 20.0
    look(health, 30.0)
    assert health.next_deadline() == 150.0


def test_throttling_and_held_memory_count_when_they_last():
    health = Health(Rules(lasting_s=15.0, least_free_share=0.8))
    slow = reading(throttle=0x48, temperature_c=92, used_bytes=30 << 20)
    look(health, 0.0, slow)
    look(health, 14.0, slow)
    assert told(health) == {}
    look(health, 15.0, slow)
    assert told(health) == {(0, "memory-held"): Severity.NO_NEW_WORK, (0, "throttled"): Severity.NOTE}
    assert "at 92 C" in health.troubles()[1].text
    look(health, 20.0, reading(throttle=0x04))  # a power cap is not a trouble
    assert told(health) == {(0, "memory-held"): Severity.NO_NEW_WORK}


def test_the_memory_of_a_worker_is_held_by_nobody_else():
    health = Health(Rules(lasting_s=0.0))
    look(health, 0.0, reading(used_bytes=90 << 20, occupied=True))
    assert told(health) == {}


def test_a_check_that_failed_bars_the_gpu_until_a_look_says_otherwise():
    health = Health(Rules(probation_s=60.0))
    health.handle(0.0, CheckFailed(0, "memory-held", "only 1 of 100 MiB are free"))
    look(health, 1.0, reading(used_bytes=99 << 20))
    assert told(health) == {(0, "memory-held"): Severity.NO_NEW_WORK}
    look(health, 5.0)
    look(health, 65.0)
    assert told(health) == {}


def test_a_full_or_silent_disk_and_a_driver_that_is_gone_are_troubles_of_the_server():
    health = Health(Rules(probation_s=10.0))
    full = DiskReading("checkpoints", "/data", free_bytes=1 << 20, least_bytes=1 << 28)
    health.handle(0.0, DisksRead((full,)))
    health.handle(0.0, DisksRead((DiskReading("state", "/var", hangs_s=12.0),)))
    health.handle(0.0, DriverLooked(gone="the driver is gone"))
    health.handle(0.0, DriverLooked(hangs="it hangs"))
    assert set(told(health)) == {
        (None, "disk-full-checkpoints"),
        (None, "disk-hangs-state"),
        (None, "driver-gone"),
        (None, "driver-hangs"),
    }
    assert "/data (checkpoints) has 1 MiB left" in health.troubles()[0].text
    health.handle(1.0, DisksRead((DiskReading("checkpoints", "/data", 1 << 30, 1 << 28),)))
    health.handle(1.0, DisksRead((DiskReading("state", "/var", 1 << 30, 1 << 28),)))
    health.handle(1.0, DriverLooked())
    health.handle(20.0, HealthTick())
    assert told(health) == {}


def test_an_operator_overrules_other_troubles_by_code():
    health = Health(
        Rules(trouble_actions={"foreign-process": Severity.NOTE, "throttled": Severity.NO_NEW_WORK}, lasting_s=0)
    )
    look(health, 0.0, reading(foreign=(Foreign(1, "Xorg", 0),), throttle=0x40))
    assert told(health) == {(0, "foreign-process"): Severity.NOTE, (0, "throttled"): Severity.NO_NEW_WORK}
    look(health, 1.0)
    assert told(health) == {(0, "throttled"): Severity.NO_NEW_WORK}, "a note has no probation"


def test_figures_that_change_with_each_look_are_no_news():
    health = Health(Rules())
    assert health.handle(0.0, DisksRead((DiskReading("state", "/var", 5 << 20, 1 << 28),)))
    assert not health.handle(5.0, DisksRead((DiskReading("state", "/var", 4 << 20, 1 << 28),)))
    assert "has 4 MiB left" in health.troubles()[0].text


# ------------------------------------------------------------------------------------------- across restarts of the agent


def test_what_an_agent_has_found_outlasts_it():
    before = Health(Rules())
    before.handle(0.0, XidSeen(0, 119))
    before.handle(0.0, XidSeen(1, 13))
    look(before, 0.0, reading(pending=True), gpu=2)
    after = Health(Rules())
    after.restore(50.0, before.kept("boot-1"), "boot-1")
    assert told(after) == {(0, "xid-119"): Severity.MOVE_AWAY, (2, "ecc-pending"): Severity.NO_NEW_WORK}
    assert after.troubles()[0].since_s == 0.0
    look(after, 60.0)
    assert told(after)[0, "xid-119"] is Severity.MOVE_AWAY


def test_after_a_boot_all_is_on_probation():
    before = Health(Rules())
    before.handle(0.0, XidSeen(0, 79))
    after = Health(Rules(probation_s=60.0))
    after.restore(500.0, before.kept("boot-1"), "boot-2")
    assert told(after) == {(0, "xid-79"): Severity.NO_NEW_WORK}
    after.handle(560.0, HealthTick())
    assert told(after) == {}


def test_what_the_inventory_has_found_is_over_when_the_gpu_answers():
    health = Health(Rules(probation_s=60.0))
    health.begin(0.0, (Trouble(code="gpu-missing", severity=Severity.NO_NEW_WORK, text="it is not there", gpu=0),))
    look(health, 1.0, GpuReading(lost="it is not counted"))
    assert set(told(health)) == {(0, "gpu-lost"), (0, "gpu-missing")}
    look(health, 2.0)
    health.handle(100.0, HealthTick())
    assert told(health) == {}


def test_a_gpu_that_tells_of_ever_other_errors_fills_no_memory():
    health = Health(Rules())
    for xid in range(1, 3000):
        health.handle(float(xid), XidSeen(0, xid))
    assert len(health.troubles()) <= MOST_CASES


def found(code: str, gpu: int | None = None) -> Trouble:
    return Trouble(code=code, severity=Severity.NO_NEW_WORK, text=code, gpu=gpu)


def after_a_restart(*before: Trouble, now: tuple[Trouble, ...] = ()) -> Health:
    """State of a restarted agent, with the troubles before the restart and those found after it, within one boot."""
    first, second = Health(Rules()), Health(Rules())
    first.begin(0.0, before)
    second.restore(50.0, first.kept("boot"), "boot")
    second.begin(50.0, now)
    return second


@pytest.mark.parametrize("code", ["no-driver", "nvml-failed", "no-gpu"])
def test_a_driver_that_works_when_the_agent_starts_again_needs_no_probation(code: str) -> None:
    assert after_a_restart(found(code)).troubles() == ()
    assert told(after_a_restart(found(code), now=(found(code),))) == {(None, code): Severity.NO_NEW_WORK}


def test_a_gpu_that_is_there_again_when_the_agent_starts_is_on_probation() -> None:
    health = after_a_restart(found("gpu-missing", 2))
    assert [(one.code, "on probation" in one.text) for one in health.troubles()] == [("gpu-missing", True)]
    assert health.next_deadline() is not None


def test_a_driver_that_was_broken_at_the_start_is_told_once() -> None:
    health = after_a_restart(now=(found("nvml-failed"),))
    health.handle(60.0, DriverLooked(gone="it is gone"))
    assert told(health) == {(None, "nvml-failed"): Severity.NO_NEW_WORK}


def test_what_becomes_graver_is_told_so():
    health = Health(Rules())
    look(health, 0.0, reading(recovery=3))
    assert look(health, 1.0, reading(recovery=1))
    assert told(health) == {(0, "recovery-action"): Severity.MOVE_AWAY}
    assert health.troubles()[0].since_s == 1.0, "an operator who trusted the GPU before did not know of it"
    assert look(health, 2.0, reading(recovery=3))
    assert health.troubles()[0].since_s == 1.0


def test_a_gpu_that_was_found_to_be_lost_before_a_start_is_left_like_any_lost_one():
    health = Health(Rules())
    health.handle(0.0, CheckFailed(0, "gpu-lost", "it does not answer"))
    look(health, 1.0, GpuReading(lost="it does not answer"))
    assert told(health) == {(0, "gpu-lost"): Severity.STOP}


def test_an_operator_overrules_what_is_found_when_the_agent_starts():
    health = Health(Rules(trouble_actions={"mig-empty": Severity.NOTE}))
    health.begin(0.0, (Trouble(gpu=0, code="mig-empty", severity=Severity.NO_NEW_WORK, text="it has no instances"),))
    assert told(health) == {(0, "mig-empty"): Severity.NOTE}


def test_a_disk_that_answers_with_an_error_is_a_trouble_of_the_server():
    health = Health(Rules(probation_s=10.0))
    health.handle(0.0, DisksRead((DiskReading("state", "/var", fails="Input/output error"),)))
    assert told(health) == {(None, "disk-fails-state"): Severity.NO_NEW_WORK}
    assert health.troubles()[0].text == "the file system of /var (state) cannot be used: Input/output error"
    health.handle(1.0, DisksRead((DiskReading("state", "/var", 1 << 30, 1 << 28),)))
    health.handle(12.0, HealthTick())
    assert told(health) == {}


def test_limits_that_do_not_hold_bar_a_server_until_they_do_and_no_longer():
    health = Health(Rules(probation_s=10.0))
    health.handle(0.0, LimitsTried("it has no control group: permission denied"))
    assert told(health) == {(None, "limits"): Severity.NO_NEW_WORK}
    later = Health(Rules(probation_s=10.0))
    later.restore(5.0, health.kept("boot"), "boot")
    later.handle(5.0, LimitsTried())
    assert told(later) == {}, "it has been mended, and tried"
    lenient = Health(Rules(trouble_actions={"limits": Severity.NOTE}))
    lenient.handle(0.0, LimitsTried("it has no control group"))
    assert told(lenient) == {(None, "limits"): Severity.NOTE}
