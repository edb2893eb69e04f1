"""One thread and one seed for every test."""

import signal

import pytest
import torch

torch.set_num_threads(1)
# A background job ignores SIGINT, and so would the programs that tests start and stop.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
