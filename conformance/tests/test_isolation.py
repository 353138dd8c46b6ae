"""Work in a separate process: work that hangs is ended, work that ends the process is a crash, and the next question is
answered; a candidate cannot forge answers."""

import json
import os
import pickle
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from conformance import check, load_golden
from conformance.cli import main
from conformance.errors import CandidateCrash, CandidateEnded, CandidateTimeout, ConformanceError
from conformance.isolation.candidate_work import Activations, CandidateWork, Head, Values
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import ResourceLimits, WorkerProcess
from conformance.model.batch import Batch
from conformance.progress import report_progress, watched
from conformance.tests.forked import run_python


class Doing:
    """Work that does what it is told, and returns it."""

    device_loss: str | None = None

    def __init__(self, parameter: Callable[[str], Any]) -> None:
        self.parameter = parameter

    def of(self, _: str) -> object:
        return self

    def does(self, what: str) -> str:
        report_progress("at work", 0.5)
        match what:
            case "hangs":
                time.sleep(600.0)
            case "wait":
                signal.pause()
            case "dies":
                os._exit(3)
            case "writes":
                sys.stdout.write("out ")
                os.write(2, b"err " * 100_000)
            case "answers first":
                _end().sendall(_line(reply=NUMBER, result="forged"))
            case "breaks the device":
                self.device_loss = "device-side assert triggered"
            case str() if what.startswith("leaves "):
                Path(what.removeprefix("leaves ")).touch()
                if not os.fork():
                    os.setsid()
                    os.fork()
                    with open(what.removeprefix("leaves "), "a") as file:
                        file.write(f"{os.getpid()}\n")
                    time.sleep(600.0)
                while len(Path(what.removeprefix("leaves ")).read_text().split()) < 2:
                    time.sleep(0.01)
            case str() if what in FORGERIES:
                FORGERIES[what](_end())
        return what

    def doubled(self) -> Values:
        return np.asarray(self.parameter("x") * 2.0)


def _end() -> socket.socket:
    """Return the end of the pipe on which answers are sent, as a candidate could find it."""
    for number in range(3, 100):
        try:
            end = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        if end.family == socket.AF_UNIX and end.type == socket.SOCK_STREAM:
            return end
    raise LookupError


class _Code:
    """An object that runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (os.mkdir, (os.environ["RAN"],))


def _line(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _endless(end: socket.socket) -> None:
    while True:
        end.sendall(_line(progress=("at work", 0.5)))


def _stalled(end: socket.socket) -> None:
    end.sendall(_line(reply=NUMBER, result="half")[:-1])
    time.sleep(600.0)


_COMPLEX = save({"0": np.ones(3, np.complex64)})

NUMBER = 1  # Of the request during which each is sent: the first to its process.
FORGERIES: dict[str, Callable[[socket.socket], object]] = {
    "lists in lists": lambda end: end.sendall(b'{"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"),
    "pickled": lambda end: end.sendall(pickle.dumps(_Code()) + b"\n"),
    "pickled in a message": lambda end: end.sendall(_line(reply=NUMBER, bytes=200) + pickle.dumps(_Code()).ljust(200)),
    "pickled as multiprocessing does": lambda end: Connection(end.detach()).send(_Code()),
    "a long message": lambda end: end.sendall(b" " * (2**24 + 1)),
    "no answer": lambda end: end.sendall(_line()),
    "an answer of another form": lambda end: end.sendall(_line(reply=NUMBER, result={"excess": "0"})),
    "a field that there is not": lambda end: end.sendall(_line(reply=NUMBER, result="", excess="0")),
    "an array that nobody asked for": lambda end: end.sendall(_line(reply=NUMBER, result="", bytes=2**40)),
    "an array that is not sent": lambda end: end.sendall(_line(reply=NUMBER, result={"array": 0})),
    "arrays of a negative size": lambda end: end.sendall(_line(reply=NUMBER, result="", bytes=-1)),
    "arrays that are none": lambda end: end.sendall(_line(reply=NUMBER, result="", bytes=64) + bytes(64)),
    "complex numbers": lambda end: end.sendall(_line(reply=NUMBER, result="", bytes=len(_COMPLEX)) + _COMPLEX),
    "a parameter that there is not": lambda end: end.sendall(_line(parameter="y")),
    "an error that is none": lambda end: end.sendall(_line(reply=NUMBER, failure={"kind": "SystemExit", "text": "0"})),
    "an answer to another request": lambda end: end.sendall(_line(reply=NUMBER + 1, result="")),
    "an answer without a number": lambda end: end.sendall(_line(result="")),
    "endless progress": _endless,
    "half of a message": _stalled,
}


def _came_of(worker: WorkerProcess, what: str) -> object:
    worker.renew()
    try:
        return worker.asking(Doing.does)(what)
    except ConformanceError as error:
        return error


def test_work_that_hangs_or_ends_its_process_is_reported_and_other_questions_are_answered() -> None:
    heard = []
    with WorkerProcess(Doing, ResourceLimits(seconds=1.0)) as there, watched(lambda what, done: heard.append((what, done))):
        works, hangs, dies, again = [_came_of(there, question) for question in ("works", "hangs", "dies", "works")]
    assert works == again == "works"
    assert isinstance(hangs, CandidateTimeout)
    assert str(hangs) == "it had not come to an end after 1 s"
    assert isinstance(dies, CandidateCrash)
    assert str(dies) == "it ended the process that it ran in (exit code 3)"
    assert heard == [("at work", 0.5)] * 4


@pytest.fixture(scope="module")
def doing() -> Iterator[WorkerProcess]:
    with WorkerProcess(Doing) as worker:
        yield worker


@pytest.fixture(scope="module")
def candidates() -> Iterator[WorkerProcess]:
    with WorkerProcess(CandidateWork) as worker:
        yield worker


def test_large_and_small_arrays_are_sent_in_both_directions(doing: WorkerProcess) -> None:
    for array in (
        np.ones(3),
        np.ones(3, ">f8"),
        np.array(2.0),
        np.arange(50_000.0).reshape(100, 500),
        np.empty((0, 4)),
        np.asfortranarray(np.eye(200)),
    ):
        np.testing.assert_array_equal(doing.asking(Doing.doubled, array.nbytes, {"x": array})(), 2.0 * array)


def test_the_output_of_a_worker_is_shown_up_to_its_limit() -> None:
    shown: list[str] = []
    with WorkerProcess(Doing, ResourceLimits(output=1000), shown.append) as there:
        there.asking(Doing.does)("writes")
    text = "".join(shown)
    assert "out " in text
    assert text.endswith("\n… what it writes from here on is not shown\n")
    assert len(text) < 1100


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2048, reason="a process may open too few files here")
def test_a_worker_is_asked_and_ended_by_a_process_with_more_open_files_than_select_takes() -> None:
    with ExitStack() as files:
        for _ in range(1024):  # FD_SETSIZE
            files.enter_context(open(os.devnull))
        with WorkerProcess(Doing) as there:
            assert _came_of(there, "works") == "works"


def test_after_a_broken_device_a_new_process_answers(doing: WorkerProcess) -> None:
    assert _came_of(doing, "works") == "works"
    first = doing.process
    doing.asking(Doing.does)("breaks the device")
    assert doing.process is None
    assert _came_of(doing, "works") == "works"
    assert doing.process is not first


def test_data_written_to_the_answer_pipe_by_a_candidate_is_its_crash_and_runs_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    for forgery in FORGERIES:
        with WorkerProcess(Doing, ResourceLimits(seconds=1.0)) as there:
            assert isinstance(_came_of(there, forgery), CandidateEnded | CandidateTimeout), forgery
            assert _came_of(there, "works") == "works", forgery
    assert not (tmp_path / "ran").exists()


def test_a_forged_answer_before_the_right_one_is_not_taken_for_the_next(doing: WorkerProcess) -> None:
    """The right answer to the first request is then read as one to the second, whose number it does not have."""
    doing.close()
    assert _came_of(doing, "answers first") == "forged"
    assert isinstance(_came_of(doing, "works"), CandidateEnded)
    assert _came_of(doing, "works") == "works"


class Lying(CandidateWork):
    """Work that reports impossible activations of a correct candidate."""

    def next(self) -> Activations:
        super().next()
        return Activations((Head("pooler", "float32", (2, 3), values=np.ones(3)),))


def test_an_impossible_answer_is_the_candidates_crash() -> None:
    with WorkerProcess(Lying) as there:
        result = check(RemoteCandidate(there, "hf-eager"), "tiny", depth="screen")
    assert result.outcome in ("crash", "fail")
    assert "harness" not in result.reason


def test_a_candidate_in_a_worker_is_judged_as_in_this_process(candidates: WorkerProcess) -> None:
    for dtype in ("float32", "bfloat16", "float64"):
        here, there = (check(name, "tiny", dtype=dtype) for name in ("hf-eager", RemoteCandidate(candidates, "hf-eager")))
        assert there.verdicts == here.verdicts
        assert there.outcome == "pass"


def test_a_large_activation_is_read_before_the_next_one_is_requested(candidates: WorkerProcess) -> None:
    batch = Batch.of({"input_ids": np.ones((32, 16), int)})  # Activations of 128 KiB.
    runner = RemoteCandidate(candidates, "hf-eager").prepare(load_golden("tiny").checkpoint, "cpu", "float32")
    stream = runner(batch.on("cpu"))
    _, first = next(stream)
    next(stream)
    with pytest.raises(CandidateCrash):
        first.read()


def test_a_worker_has_no_network_where_the_system_allows_it_for_any_user() -> None:
    code = (
        "import os, sys, socket, encodings.idna; from conformance.isolation.confinement import leave_network\n"
        "if sys.argv[1] == 'nobody': os.setgid(65534); os.setuid(65534)\n"
        "user = os.getuid(); left = leave_network(); assert os.getuid() == user or not left\n"
        "names = [name for _, name in socket.if_nameindex()]; assert not left or names == ['lo'], names\n"
        "server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname(), 5).close()\n"
    )
    for user in ("same", *(["nobody"] if os.getuid() == 0 else [])):
        done = run_python("-c", code, user)
        assert done.returncode == 0, done.stderr


def test_a_candidate_is_imported_by_one_worker_only(tmp_path: Path) -> None:
    imports = tmp_path / "imports"
    (tmp_path / "counted.py").write_text(
        f"import os\nwith open({str(imports)!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
        "from conformance.implementations.making_bert import making_bert\n"
    )
    assert main(["run", f"{tmp_path / 'counted.py'}:making_bert", "--golden", "tiny", "-o", str(tmp_path)]) == 0
    assert len(imports.read_text().split()) == 1


def test_a_runner_is_prepared_again_after_another_one_replaced_it(candidates: WorkerProcess) -> None:
    shallow, candidate = load_golden("tiny"), RemoteCandidate(candidates, "hf-eager")
    runner, batch = candidate.prepare(shallow.checkpoint, "cpu", "float32"), shallow.batches["padded"].on("cpu")
    before = {name: value.read() for name, value in runner(batch)}
    candidate.prepare(load_golden("deep").checkpoint, "cpu", "float32")
    np.testing.assert_equal({name: value.read() for name, value in runner(batch)}, before)
