"""Printed commands carry what the operator's own one was let in with, and nothing that they do not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.commands.access_flags import AccessFlags
from app.commands.tls_options import TlsFlags
from app.console.app import templates

FLAGS = AccessFlags(
    TlsFlags(Path("a b/ca.pem"), Path("c.pem"), Path("k.pem")), Path("t"), True, ("--node", "https://h:1")
)
CA, CERT, TOKEN = "--ca 'a b/ca.pem'", "--cert c.pem --key k.pem", "--token-file t"


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("quorumscope status --node https://h:1", f" {CA} {TOKEN} {CERT}"),
        ("quorumscope broker list --node https://h:1", f" {CA} {TOKEN} {CERT}"),
        ("quorumscope scrub --node https://h:1", f" {CA} {TOKEN}"),
        ("quorumscope audit --node https://h:1 --node https://h:2", f" {CA} {TOKEN}"),
        ("quorumscope status --node https://h:1 --ca FILE --cert FILE --key FILE", f" {TOKEN}"),
        ("quorumscope node --id n0 --data d", ""),
        ("quorumscope demo heal", ""),
        ("openssl s_client -connect h:1", ""),
    ],
)
def test_each_command_gets_what_it_takes(command: str, more: str) -> None:
    assert FLAGS.over(command) == command + more
    assert AccessFlags().over(command) == command


def test_another_command_to_the_same_group_names_it_as_this_one_did() -> None:
    assert FLAGS.again("members", "list") == f"quorumscope members list --node https://h:1 {CA} {TOKEN} {CERT}"
    assert AccessFlags().again("members", "list") == "quorumscope members list"


def test_a_group_that_was_named_by_its_members_is_named_so_again() -> None:
    by_peers = AccessFlags(named=("--peers", "n0-h:1;n1-h:2"))
    swapped = "quorumscope status --peers 'n0-h:1;n1-h:2'"
    assert by_peers.in_its_shape("quorumscope status --node http://h:8431", "http://h:8432") == swapped
    assert by_peers.in_its_shape("quorumscope status --node http://h:8432", "http://h:8432").endswith("h:8432")
    assert by_peers.in_its_shape("quorumscope scrub --node http://h:8431", None).endswith("h:8431")
    assert FLAGS.in_its_shape("quorumscope members list --node http://h:9", None).startswith(
        "quorumscope members list --node http://h:9 --ca"
    )


def test_a_call_shows_the_token_and_knows_the_authority() -> None:
    line = FLAGS.over_curl("curl -s https://h:1/api/v1/state")
    assert line == "curl --cacert 'a b/ca.pem' -H \"Authorization: Bearer $(cat t)\" -s https://h:1/api/v1/state"
    of_shell = AccessFlags(has_token=True).over_curl("curl -s http://127.0.0.1:1/api/v1/state")
    assert of_shell == 'curl -H "Authorization: Bearer $QUORUMSCOPE_TOKEN" -s http://127.0.0.1:1/api/v1/state'
    assert of_shell == AccessFlags(has_token=True).over_curl(of_shell), "once"
    assert AccessFlags().over_curl(line) == line


def test_a_page_prints_a_place_for_the_authority_where_a_port_has_tls() -> None:
    env = templates().env
    page = env.from_string('{% from "_macros.html" import to_paste %}{{ to_paste(*lines) }}')
    html = page.render(lines=("quorumscope scrub --node https://h:1", "curl -s https://h:1/api/v1/state"))
    assert "quorumscope scrub --node https://h:1 --ca CA.pem<" in html
    assert "curl --cacert CA.pem -H &#34;Authorization: Bearer $QUORUMSCOPE_TOKEN&#34; -s https://h:1/api/v1/st" in html
    assert html.count("the certificate of the authority") == 1 and "CLIENT" not in html
    members = page.render(lines=("quorumscope status --node https://h:1",))
    assert "https://h:1 --ca CA.pem --cert CLIENT.pem --key CLIENT.key<" in members and "show to members" in members
    plain = page.render(lines=("quorumscope scrub --node http://h:1", "", None))
    assert plain.count("<pre>") == 1 and "CA.pem" not in plain
