"""Only the process that the agent started may join, not its children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticd.protocol.errors import UserError
from elasticd.protocol.variables import GANG
from elasticd.worker.admission import JOINED, Process, check_process, launcher, leave_gang, take_key

WORKER = {"ELASTICD_WORKER": "digits-1.0"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
GIVEN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}
IN_GANG = {**WORKER, **GIVEN, GANG: " ".join(f"{name}={value}" for name, value in GIVEN.items())}


def run(script: str, directory: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(script)
    environment = {**os.environ, **variables}
    return subprocess.run(
        [*(command or [sys.executable]), "train.py"], cwd=directory, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("environ", [{}, WORKER, IN_GANG, {JOINED: "7"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_the_process_that_was_started_for_it_may_join(environ: dict[str, str]) -> None:
    check_process(environ, Process(7))


@pytest.mark.parametrize("environ", [{}, WORKER])
def test_a_process_that_imports_the_script_anew_is_told_of_the_guard(environ: dict[str, str]) -> None:
    with pytest.raises(UserError, match='under `if __name__ == "__main__":`'):
        check_process(environ, Process(7, "SpawnProcess-1", spawned=True))


def test_a_worker_joins_once() -> None:
    with pytest.raises(UserError, match="called twice in one process"):
        check_process({**WORKER, JOINED: "7"}, Process(7))


def test_what_a_worker_starts_does_not_inherit_the_jobs_key() -> None:
    environ = {**IN_GANG, "ELASTICD_KEY": "secret"}
    take_key(environ)
    take_key(environ)
    assert environ == IN_GANG


def test_a_child_of_the_worker_may_not_join_in_its_place() -> None:
    with pytest.raises(UserError, match=r"ForkProcess-1, number 7"):
        check_process(WORKER, Process(7, "ForkProcess-1", child=True))
    with pytest.raises(UserError, match="is not the worker"):
        check_process({**WORKER, JOINED: "6"}, Process(7))
    check_process({}, Process(7, "ForkProcess-1", child=True))  # outside a cluster it trains alone


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (TORCHRUN, ("torchrun, or a launcher like it,", 2)),
        ({**IN_GANG, **TORCHRUN}, ("torchrun, or a launcher like it,", 2)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, ("a launcher", 4)),
        ({**IN_GANG, "RANK": "1"}, ("a launcher", 2)),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"}, ("srun", 8)),
        ({"SLURM_JOB_ID": "12", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),  # in sbatch's own shell: one process
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, ("mpirun", 2)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, ("mpiexec", 2)),
        ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, None),
        (IN_GANG, None),
    ],
)
def test_one_of_several_processes_of_a_launcher_is_found(
    environ: dict[str, str], found: tuple[str, int] | None
) -> None:
    assert launcher(environ) == found
    if found is not None:
        with pytest.raises(UserError, match=rf"one of {found[1]} processes .* -- python train.py"):
            check_process(environ, Process(7))


def test_what_the_agent_has_set_for_a_gang_is_taken_away_and_what_the_job_has_set_stays() -> None:
    environ = {**IN_GANG, "MASTER_PORT": "1234", "NODE_RANK": "5", "ELASTICD_JOB": "digits-1"}
    leave_gang(environ)
    assert environ == {**WORKER, "MASTER_PORT": "1234", "NODE_RANK": "5", "ELASTICD_JOB": "digits-1"}
    leave_gang(environ)


def test_an_adapter_takes_them_away_when_it_is_imported(tmp_path: Path) -> None:
    script = "import os, json\nimport elasticd.integrations\nprint(json.dumps([n for n in os.environ if 'RANK' in n]))"
    done = run(script, tmp_path, **IN_GANG)
    assert json.loads(done.stdout) == [], done.stderr


SPAWNS = """
import torch, elasticd as elastic
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.ones(2)
run = elastic.join()
model = torch.nn.Linear(2, 1)
loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
model, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for epoch in run.epochs(1):
    for x in batches:
        model(x).sum().backward()
        optimizer.step()
print("trained")
"""


@pytest.mark.cluster
@pytest.mark.parametrize("guarded", [False, True])
def test_spawned_loaders_need_a_guard_around_the_script(tmp_path: Path, guarded: bool) -> None:
    data, trains = SPAWNS[: SPAWNS.index("run =")], SPAWNS[SPAWNS.index("run =") :]
    script = data + 'if __name__ == "__main__":\n' + "".join(f"    {line}\n" for line in trains.splitlines())
    done = run(script if guarded else SPAWNS, tmp_path)
    if guarded:
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    else:
        assert done.returncode == 1
        assert "import train.py anew" in done.stderr.splitlines()[-1]
        assert 'under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


@pytest.mark.cluster
def test_a_package_that_is_run_needs_no_guard(tmp_path: Path) -> None:
    data, trains = SPAWNS[: SPAWNS.index("run =")], SPAWNS[SPAWNS.index("run =") :]
    (package := tmp_path / "package").mkdir()
    (package / "__init__.py").touch()
    (package / "data.py").write_text(data)
    (package / "__main__.py").write_text(f"from package.data import *\n{trains}")
    done = run("", tmp_path, sys.executable, "-m", "package")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


@pytest.mark.cluster
def test_a_spawned_process_that_joins_is_told_why_it_may_not(tmp_path: Path) -> None:
    script = "import multiprocessing as m, elasticd as elastic\nrun = elastic.join()\n"
    script += "if __name__ != '__mp_main__':\n    m.get_context('spawn').Process(target=print).start()\n"
    done = run(script, tmp_path)
    assert "UserError: elastic.join() was called in SpawnProcess-1" in done.stderr.splitlines()[-1]


@pytest.mark.cluster
def test_under_torchrun_at_a_desk_nothing_is_trained(tmp_path: Path) -> None:
    script = SPAWNS.replace('num_workers=1, multiprocessing_context="spawn"', "")
    done = run(script, tmp_path, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    assert done.returncode == 1
    assert "one of 2 processes that torchrun" in done.stderr
    assert "trained" not in done.stdout
