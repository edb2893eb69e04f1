import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from amber_trl._compiler import shielded_children
from amber_trl.runs import StopOnInterrupt, interrupts


@pytest.fixture(autouse=True)
def _python_s_own_handler() -> Iterator[None]:
    """An earlier test's memmap storage leaves TorchRL's handler, which restores another one."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


def test_first_asks_and_second_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_SAME", 0.0)
    earlier = signal.getsignal(signal.SIGINT)
    with StopOnInterrupt() as stop:
        assert not stop.requested
        assert signal.getsignal(signal.SIGINT) is not earlier
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is earlier


def test_another_thread_installs_nothing() -> None:
    earlier, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with StopOnInterrupt() as stop:
            seen.append((signal.getsignal(signal.SIGINT), stop.requested))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(earlier, False)]


def test_a_child_started_in_the_shield_outlives_an_interrupt() -> None:
    with shielded_children():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=60) == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_another_signal_asks_first_and_a_later_one_ends_the_process(name: str) -> None:
    program = (
        "import signal, time; from amber_trl.runs import StopOnInterrupt\n"
        f"signal.signal(signal.{name}, signal.SIG_DFL)\n"
        "with StopOnInterrupt() as stop:\n"
        "    for _ in range(2):  # the second is the same one, through a parent\n"
        f"        signal.raise_signal(signal.{name})\n"
        "    print(stop.signal.name, flush=True)\n"
        "    time.sleep(1.1)\n"
        f"    signal.raise_signal(signal.{name})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.Signals[name]
    assert done.stdout.split() == [name]
