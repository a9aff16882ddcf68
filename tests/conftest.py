"""Tests use this machine only: a connection to anywhere but loopback fails at once."""

import ipaddress
import os
import secrets
import socket

import pytest
import pytest_asyncio

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is first imported
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # float32 on the CPU, also where there is a GPU: 1e-5 is compared
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two threads on a tiny model's operations wait more than they compute

# Test files with whole runs. They go first: what the last worker is left with is short (make test hands out files).
LONGEST = """grpo_run distrl_run crps_run parallel resume site control benchmarks demo engine arena distrl_vision
    hacking digirl miniwob browser folder pages hostile estimate alfworld cross gallery webarena_sites tools android
    envs phone_adb webgym""".split()


def pytest_collection_modifyitems(items):
    place = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def _is_local(address) -> bool:
    if not isinstance(address, tuple):  # a Unix socket's path
        return True
    host = address[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", "")


@pytest.fixture(autouse=True, scope="session")
def wandb_files(tmp_path_factory):
    """wandb keeps copies of artifacts in the user's home otherwise."""
    os.environ["WANDB_DATA_DIR"] = str(tmp_path_factory.mktemp("wandb"))


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    real_connect = socket.socket.connect
    real_connect_ex = socket.socket.connect_ex

    def connect(self, address):
        if not _is_local(address):
            raise OSError(f"tests use no network: connection to {address} refused")
        return real_connect(self, address)

    def connect_ex(self, address):
        if not _is_local(address):
            raise OSError(f"tests use no network: connection to {address} refused")
        return real_connect_ex(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect_ex)


@pytest.fixture(scope="session")
def ray_address():
    """Where a Ray cluster of two CPUs runs, for scripts of which no part is to be killed."""
    from tests.scripts import ray_nodes

    with ray_nodes(2) as (address, _):
        yield address


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def session(browser):
    """A session of the module's own `browser`."""
    session = await browser.session()
    yield session
    await session.close()
