"""Chunks on a real Dask cluster of two worker processes on this machine."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attncli.errors import RunError, UserError
from attncli.runs import cluster
from attncli.runs.driver import Died
from tests import chunk_work
from tests.chunk_work import KILLER, WRONG, by_number, chunks_of
from tests.conftest import Attn
from tests.runs.stores import write_batch

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")


def local_cluster(**options: object):
    from distributed import LocalCluster

    own = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    return LocalCluster(**{"threads_per_worker": 1, **own, **options})


# By default, a chunk gets 3 more workers, and a worker that takes 15 s to restart is abandoned.
PATIENCE = {"distributed.scheduler.allowed-failures": 1, "distributed.deploy.lost-worker-timeout": "10m"}


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    with dask.config.set(PATIENCE), local_cluster(n_workers=2) as local:
        yield local.scheduler_address


def run_cluster(work, chunks, scheduler: str):
    return list(cluster.run_in_cluster(iter(chunks), work, scheduler=scheduler))


def test_every_result_once_from_both_workers(scheduler: str) -> None:
    results = run_cluster(chunk_work.squares_by_process, chunks_of(101, 7), scheduler)
    assert by_number((chunk, squares) for chunk, (squares, _, _) in results) == {i: i**2 for i in range(101)}
    assert len({pid for _, (_, pid, _) in results} - {os.getpid()}) == 2


def test_an_error_in_one_run_is_reported_and_the_others_continue(scheduler: str) -> None:
    results = by_number(run_cluster(chunk_work.wrong_at_seven, chunks_of(20, 10), scheduler))
    died = results.pop(WRONG)
    assert isinstance(died, Died) and died.reason == "ValueError: no 7; in here"
    assert results == {i: i**2 for i in range(20) if i != WRONG}


def test_a_worker_that_dies_loses_nothing(scheduler: str, tmp_path: Path) -> None:
    results = by_number(run_cluster(chunk_work.killed_once, chunks_of(12, 1, tmp_path), scheduler))
    assert results == {i: i**2 for i in range(12)}


@pytest.mark.nightly
def test_a_run_that_kills_its_worker_every_time_is_the_only_one_lost() -> None:
    # All runs are on one worker whenever it dies, some of them queued behind the run that kills it.
    patience = PATIENCE | {"distributed.scheduler.allowed-failures": 0}
    numbers = range(KILLER - 5, KILLER + 6)
    with dask.config.set(patience), local_cluster(n_workers=1, threads_per_worker=8) as local:
        chunks = chunks_of(numbers[-1] + 1, 1)[numbers[0] :]
        results = by_number(run_cluster(chunk_work.killed_by_thirteen, chunks, local.scheduler_address))
    died = results.pop(KILLER)
    assert isinstance(died, Died) and died.reason.endswith("workers ended while computing this run")
    assert results == {i: i**2 for i in numbers if i != KILLER}


def test_schedulers_that_do_not_answer_and_invalid_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SECONDS_TO_CONNECT", 1)
    for address, kind, message in (
        ("tcp://127.0.0.1:1", RunError, "scheduler: tcp://127.0.0.1:1 does not answer: Timed out"),
        ("nonsense", UserError, "scheduler: nonsense: missing port number"),
        ("foo://127.0.0.1:1", UserError, "scheduler: foo://127.0.0.1:1: unknown address scheme"),
        ("tls://127.0.0.1:1", UserError, "scheduler: tls://127.0.0.1:1: TLS expects"),
    ):
        with pytest.raises(UserError) as told:
            run_cluster(chunk_work.squares, chunks_of(3, 1), address)
        assert type(told.value) is kind
        assert str(told.value).startswith(message) and len(told.value.lines) == 1


def test_an_invalid_scheduler_leaves_the_store_unchanged(attn: Attn, tmp_path: Path) -> None:
    arguments, store = write_batch(tmp_path, 2), tmp_path / "runs.db"
    command = [*arguments, "--scheduler", "nonsense", "-o", str(store)]
    assert attn(command).code == 2 and not store.exists()
    attn([*arguments, "-o", str(store)])
    before = store.read_bytes()
    assert attn([*command, "--fresh"]).code == 2
    assert store.read_bytes() == before


def test_distributed_is_an_optional_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=r'^scheduler: needs: pip install "attncli\[cluster\]"$'):
        run_cluster(chunk_work.squares, chunks_of(3, 1), "tcp://127.0.0.1:1")


def test_a_cluster_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SECONDS_FOR_A_WORKER", 1)
    told: list[str] = []
    run = cluster.run_in_cluster
    with local_cluster(n_workers=0) as local, pytest.raises(RunError, match="has no workers"):
        list(run(chunks_of(3, 1), chunk_work.squares, scheduler=local.scheduler_address, on_wait=told.append))
    assert told == [f"scheduler: {local.scheduler_address} has no workers yet: waiting 1 s for a worker"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(
            chunk_work.older_attncli,
            r"has attncli 0\.0\.1 \(here \d\S+\): install the same versions on that worker",
            marks=pytest.mark.nightly,
        ),
        (chunk_work.without_attncli, r"attncli cannot be imported on tcp://.*: pip install attncli=="),
    ],
)
def test_workers_with_another_version_are_refused(spoil: Callable[[], None], message: str) -> None:
    with local_cluster(n_workers=1) as local, local.get_client() as client:
        client.run(spoil)
        with pytest.raises(UserError, match=message) as told:
            run_cluster(chunk_work.squares, chunks_of(3, 1), local.scheduler_address)
        assert told.value.exit_code == 2


def test_a_worker_of_another_version_that_joins_later_is_refused(scheduler: str) -> None:
    with pytest.raises(RunError, match="a worker has torch"):
        cluster.work_there(chunk_work.squares, chunks_of(1, 1)[0], {**cluster.versions(), "torch": "0.1"})


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_certificates_come_from_dasks_configuration(tmp_path: Path) -> None:
    from distributed import Security

    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*new, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    files = {"ca-file": certificate, "client.key": key, "client.cert": certificate}
    configuration = {f"distributed.comm.tls.{name}": file for name, file in files.items()}
    roles = {
        f"tls_{role}_{kind}": file
        for role in ("scheduler", "worker", "client")
        for kind, file in (("key", key), ("cert", certificate))
    }
    security = Security(tls_ca_file=certificate, require_encryption=True, **roles)
    with local_cluster(n_workers=1, protocol="tls://", security=security) as local:
        address = local.scheduler_address
        assert address.startswith("tls://")
        with pytest.raises(UserError, match="TLS"):
            run_cluster(chunk_work.squares, chunks_of(3, 1), address)
        with dask.config.set(configuration):
            assert by_number(run_cluster(chunk_work.squares, chunks_of(9, 2), address)) == {
                i: i**2 for i in range(9)
            }


@pytest.mark.nightly
@pytest.mark.parametrize("call", ["nthreads", "wait_for_workers", "run"])
def test_a_scheduler_that_ends_after_connecting_is_one_line(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask raises an OSError without a number, which could be mistaken for a failure to write."""

    class Client:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __getattr__(self, name: str) -> object:
            def answer(*_: object, **__: object) -> dict[str, object]:
                if name == call:
                    raise distributed.comm.CommClosedError("in <TCP>: Stream is closed")
                return {}

            return answer

    monkeypatch.setattr(distributed, "Client", Client)
    monkeypatch.setattr(cluster, "check_scheduler", lambda scheduler: None)
    with pytest.raises(RunError, match=r"the connection to tcp://a:1 was lost: rerun the same command"):
        list(cluster.run_in_cluster(iter([]), chunk_work.squares, scheduler="tcp://a:1"))
