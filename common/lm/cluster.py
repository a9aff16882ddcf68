"""Ray: one of our own on this machine, or a cluster that runs."""

import os
import signal
import socket
import sys

from common.errors import UsageError

ATTEMPTS = 5  # to start a Ray of our own


def start_ray(address, places):
    """Joins the Ray cluster at `address` (HOST:PORT, or auto), or, where that is empty, starts a Ray on loopback with
    `places` CPUs, which ends with this process. Raises UsageError where no cluster answers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a call after its end must not join whatever Ray is there
    import ray

    on_terminate = signal.getsignal(signal.SIGTERM)  # Ray puts one of its own there, which dies with a stack trace
    if address:
        try:
            if address != "auto":  # Ray itself asks a machine that does not answer for three minutes
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address, logging_level="ERROR")
        except (OSError, ValueError, OverflowError) as error:
            raise UsageError(
                f"--ray-address {address}: no Ray cluster answers ({error}); HOST:PORT as `ray start` printed it, with "
                "RAY_AUTH_MODE and RAY_AUTH_TOKEN as they were there"
            ) from None
        there = ray.cluster_resources().get("CPU", 0)
        if there < places:
            print(f"the cluster has {there:.0f} CPUs, {places} are wanted: some parts wait", file=sys.stderr)
    else:  # places, not cores: the parts take turns on few
        here = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "logging_level": "ERROR"}
        for attempt in range(ATTEMPTS):
            try:
                ray.init("local", num_cpus=places, **here)
                break
            except Exception as error:  # of no class of its own: a busy machine takes longer than Ray's 30 seconds
                if "timed out" not in str(error) or attempt == ATTEMPTS - 1:
                    raise
                ray.shutdown()
    signal.signal(signal.SIGTERM, on_terminate)
