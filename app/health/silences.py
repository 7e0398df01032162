"""What to do about a member that tells no state: a table by what is known of why, beside `advice`.

Nothing that runs is to be started again, so each row says what answers where the member should. Invariant: a member is
printed a start only where nothing listens (`advice.START`).
"""

from __future__ import annotations

from typing import Final

from app.health.advice_row import Advice

NO_WORD: Final = Advice(
    "{node} is asked and says nothing: its process hangs or is gone, its machine is, or the way there is cut",
    "see on {where} whether its process still runs: one that hangs has to go on, or be ended; one that is gone is"
    " started as it was before. It is well when this ends with 0",
    "a-member-does-not-answer",
)
RUNS: Final = Advice(
    "{node}'s engine runs, for its leader hears it; its control plane does not answer here: that process hangs or has"
    " ended, or the way from here to it is cut",
    "look on {where} at the process of {node}'s control plane, and at the way there: one that hangs has to go on, or be"
    " ended; this asks it, and it is well when this ends with 0",
    "a-member-does-not-answer",
    command="quorumscope status --node {there}",
    curl="curl -s {there}/api/v1/state",
)
RUNS_ELSEWHERE: Final = Advice(
    "{node}'s control plane says that its engine runs; its member port does not answer here at {address}",
    "start nothing: see whether {node} listens there (`quorumscope members list` says where the group looks for it,"
    " `members address` changes that), and look at the way there; this shows what {node} says of itself",
    "a-member-does-not-answer",
    command="quorumscope status --node {there}",
    curl="curl -s {there}/api/v1/state",
)
NOT_ASKED: Final = Advice(
    "this console does not ask {node}, so that nothing is known of it but what its leader says",
    "an admin approves the address that a member named for it, or names one, on the group's page Addresses; this shows"
    " what {node} says when it is asked without the console",
    "a-member-does-not-answer",
)
ANOTHER: Final = Advice(
    "another node answers where {node}'s control plane should; of {node} itself nothing is known here",
    "have {node}'s control plane listen at an address of its own, or correct its address in the console; this shows who"
    " answers at {there}",
    "a-member-does-not-answer",
    command="quorumscope status --node {there}",
    curl="curl -s {there}/api/v1/state",
)
STRANGER: Final = Advice(
    "a member of another group of this name answers at {address}; of this group's {node} nothing is known here",
    "name the addresses of one group only (a restored group has the names of the old one, and another id); this"
    " shows whom the group itself has where",
    "a-member-does-not-answer",
    command="{members}",
)
NAMESAKE: Final = Advice(
    "what answers where {node} should be belongs to a group of another name; of this group's {node} nothing is known"
    " here",
    "see on {where} as which group it was started (`[node] group`, `--group`): {node} belongs to {group}. Where that is"
    " another group's own member, name the address of this one's; this shows whom the group itself has where",
    "a-member-does-not-answer",
    command="{members}",
)
HANGS_UP: Final = Advice(
    "something listens at {address} and closes the connection: a member with TLS does so where no certificate of its"
    " authority is shown",
    "show the certificate, as this does (docs/tls.md); where it was shown, or the group has no TLS, see in {node}'s"
    " output whether it is ending",
    "a-member-does-not-answer",
    command="{status} --ca FILE --cert FILE --key FILE",
)
REFUSES: Final = Advice(
    "{node}'s control plane runs, and refuses the token that this console shows; of {node} itself nothing is known",
    "give this console the token of that control plane (`[console] node_token_file`, or the group's page Addresses);"
    " with it in $QUORUMSCOPE_TOKEN this shows what {node} says",
    "a-member-does-not-answer",
    command="quorumscope status --node {there}",
    curl='curl -s -H "Authorization: Bearer $QUORUMSCOPE_TOKEN" {there}/api/v1/state',
)
ERRS: Final = Advice(
    "something answers at {there}, and what it says is no state of a member: another program, another release, or a"
    " process that is broken; of {node} itself nothing is known here",
    "see on {where} what listens there, and {node}'s output; the second line shows what it says",
    "a-member-does-not-answer",
    command="quorumscope status --node {there}",
    curl="curl -s {there}/api/v1/state",
)
STARTS_AGAIN: Final = Advice(
    "{node}'s engine ended, or does not listen yet; its supervisor starts it again by itself, ten seconds after an end"
    " at the latest",
    "wait, and look at {node}'s output for what ended it; it is well when this ends with 0",
    "a-member-does-not-answer",
)
REFUSED: Final = Advice(
    "{node}'s engine will not run with what it found; its other process is still there to say why, and starts nothing",
    "settle what the reason says (`quorumscope store repair` on its data directory shows what can be), end what is left"
    " of {node}, and start it again; later starts need no --init",
    "a-member-does-not-answer",
    command="{start}",
)
