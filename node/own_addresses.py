"""Where one node listens: what cannot be, said before anything starts.

A node's processes listen one after the other, so two addresses that are one would be found by whichever comes second,
as "the port is in use", with the first one already serving.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from node.broker_table import BrokerTable
from node.config_models import ControlTable
from node.config_table import is_loopback
from node.protocol.peers import is_everywhere, split_address

# What may pass, as where a machine comes up before its network: who meets it is started again. A port that is taken
# stays so until somebody acts.
NOT_YET: Final = "; see to its network, or"
VIP_BELOW = 2  # RocketMQ's clients look for the VIP port so far below the broker's main one


def addresses_trouble(member_key: str, member: str, control: ControlTable, broker: BrokerTable, token: object) -> str:
    """Why a node cannot listen at these; empty: it can. `member`: its own address, by the key that says it; `token`:
    what protects its control plane."""
    control_host, control_port = split_address(control.address)
    named = [(member_key, *split_address(member)), ("[control] address", control_host, control_port)]
    if broker.has_broker:
        host, port = split_address(broker.address)
        named.append(("[broker] address", host, port))
        named += [("[broker] vip", host, port - VIP_BELOW)] if broker.vip else []
    for number, (key, host, port) in enumerate(named):
        for earlier, other_host, other_port in named[:number]:
            if port == other_port and is_one_host(host, other_host):
                return f"{earlier} and {key} both mean port {port} of {host}: give each a port of its own"
    if not is_loopback(control_host) and (token is None or control.tls_cert_file is None):
        return (
            f"[control] address {control.address} is beyond loopback: it needs token_file, tls_cert_file"
            " and tls_key_file; tokens_file will do for the first"
        )
    return ""


def is_one_host(one: str, other: str) -> bool:
    """Whether who listens at both needs two ports."""
    hosts = {"127.0.0.1" if host == "localhost" else host for host in (one, other)}
    return len(hosts) == 1 or any(is_everywhere(host) for host in hosts)


def why_not_listening(address: str, error: OSError, key: str) -> str:
    """What is wrong with an address at which nothing could listen, and what to do; `key` says it."""
    resolver = isinstance(error, socket.gaierror) or error.errno is None or error.errno <= 0
    said = (error.strerror or str(error)) if resolver else os.strerror(error.errno or 0)
    todo = ""
    if isinstance(error, socket.gaierror):
        todo = f"the host name cannot be resolved yet{NOT_YET} "
    elif error.errno == errno.EADDRNOTAVAIL:
        todo = f"this machine has no such address yet{NOT_YET} "
    elif error.errno == errno.EADDRINUSE:
        todo = "end what uses that port, or "
    return f"{address} cannot be listened on ({said.lower()}): {todo}give another in {key}"
