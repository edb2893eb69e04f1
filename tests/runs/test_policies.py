"""Policies saved to ``policy.pt`` and loaded; ``tests/evaluation`` plays them."""

import dataclasses
import errno
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from amber_trl.modules import gaussian_actor
from amber_trl.runs import Policy, load_policy

_ARGUMENTS: dict[str, Any] = {"observation_size": 3, "action_size": 1}


def _record(hidden: int = 8) -> Policy:
    arguments = _ARGUMENTS | {"hidden_sizes": [hidden]}
    return Policy("Pendulum-v1", arguments, gaussian_actor(**arguments))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.999])
def test_a_truncated_policy_is_reported_as_damaged(tmp_path: Path, share: float) -> None:
    file = tmp_path / "policy.pt"
    _record().save(file)
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"policy\.pt' is damaged.*--checkpoint last"):
        load_policy(file)


def test_a_directory_is_not_a_policy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a directory"):
        load_policy(tmp_path)


def test_a_policy_on_a_full_disk_is_an_oserror(tmp_path: Path) -> None:
    """torch.save would raise a RuntimeError that hides the cause."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as refused:
            _record(hidden=10_000).save(tmp_path / "policy.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())


def _wrapped(*wrappers: str) -> Policy:
    return dataclasses.replace(_record(), env_kwargs={"g": 9.0}, wrappers=wrappers)


def test_it_records_how_its_environment_is_made(tmp_path: Path) -> None:
    name = "gymnasium.wrappers:RescaleObservation"
    _wrapped(name).save(tmp_path / "policy.pt")
    loaded = load_policy(tmp_path / "policy.pt")
    assert (loaded.env_kwargs, loaded.wrappers) == ({"g": 9.0}, [name])
    for other in (_record(), _wrapped()):
        with pytest.raises(ValueError, match=r"env_kwargs=|wrappers="):
            other.load_state_dict(loaded.state_dict())


def test_a_file_of_an_earlier_version_loads(tmp_path: Path) -> None:
    state = _record().state_dict()
    earlier = {name: state[name] for name in ("env_id", "arguments", "normalizer", "actor")}
    torch.save(earlier, tmp_path / "policy.pt")
    loaded = load_policy(tmp_path / "policy.pt")
    assert (loaded.env_kwargs, loaded.wrappers) == ({}, [])


@pytest.mark.parametrize("name", ["named_by_a_file:W", "gymnasium.utils.play:play"])
def test_wrappers_that_import_a_module_must_be_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "policy.pt"
    _wrapped(name).save(path)
    with pytest.raises(ValueError, match=rf"imports the module .*--wrappers {name}"):
        load_policy(path)
    with pytest.raises(ValueError, match=r"wrappers=\['other:W'\] was passed"):
        load_policy(path, wrappers=["other:W"])
    assert load_policy(path, wrappers=(name,)).wrappers == [name]


def test_what_the_named_function_or_the_environment_raises_is_not_blamed_on_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name = tmp_path / "policy.pt", "own_network:make"
    make = {"make": lambda *specs, normalizer: gaussian_actor(3, 1, normalizer=normalizer)}
    monkeypatch.setitem(sys.modules, "own_network", SimpleNamespace(**make))
    dataclasses.replace(_record(), actor_function=name, arguments={}).save(path)
    with pytest.raises(ValueError, match=rf"does not hold the network that actor='{name}' makes"):
        load_policy(path, actor=name)
    dataclasses.replace(_record(), actor_function=name, env_id="Nowhere-v0").save(path)
    with pytest.raises(ValueError, match=r"^env_id='Nowhere-v0' is not known"):
        load_policy(path, actor=name)
