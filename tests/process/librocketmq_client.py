"""What a client of RocketMQ does that knows nothing of us: librocketmq (C++), as the wheel `rocketmq` carries it.

A program of its own: the library writes logs below HOME and threads of its own end a process as they like. Prints one
JSON object: what it sent (queue offsets), and what each of its consumers received. Its batches are not used: it says
`batch=1`, which Java's brokers read as false (Boolean.parseBoolean), and so do ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer

WITHIN_S: Final = 60.0
SINGLES: Final = 6
LONG_BODY: Final = "compressed " * 500  # it compresses what is above 4 KiB


def message(topic: str, body: str, tag: str) -> Any:
    made = Message(topic)
    made.set_body(body)
    made.set_tags(tag)
    made.set_keys(f"key-{body[:20]}")
    return made


def send(name_servers: str, topic: str) -> dict[str, Any]:
    producer = Producer("foreign-producer")
    producer.set_namesrv_addr(name_servers)
    producer.start()
    sent: dict[str, Any] = {}
    for number in range(SINGLES):
        one = producer.send_sync(message(topic, f"single {number}", "AB"[number % 2]))
        sent[f"single {number}"] = (int(one.status), one.offset)
    for number in range(4):
        one = producer.send_orderly(message(topic, f"ordered {number}", "B"), 7)  # its queue: 7 modulo their count
        sent[f"ordered {number}"] = (int(one.status), one.offset)
    one = producer.send_sync(message(topic, LONG_BODY, "B"))
    sent["long"] = (int(one.status), one.offset)
    producer.shutdown()
    return sent


def subscribe(name_servers: str, topic: str, group: str, expression: str, *, orderly: bool) -> tuple[Any, list[str]]:
    bodies: list[str] = []
    consumer = PushConsumer(group, orderly)
    consumer.set_namesrv_addr(name_servers)
    consumer.subscribe(topic, lambda one: bodies.append(one.body.decode()), expression)
    consumer.start()
    return consumer, bodies


def wait_for(fact: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN_S
    while not fact() and time.monotonic() < until:
        time.sleep(0.05)


def main(name_servers: str, topic: str) -> None:
    sent = send(name_servers, topic)
    every = SINGLES + 4 + 2  # and one that was there
    tagged, of_tag = subscribe(name_servers, topic, "foreign-tagged", "A", orderly=False)
    ordered, in_order = subscribe(name_servers, topic, "foreign-ordered", "*", orderly=True)
    wait_for(lambda: len(of_tag) >= SINGLES // 2 and len(in_order) >= every)
    pulling = PullConsumer("foreign-pull")
    pulling.set_namesrv_addr(name_servers)
    pulling.start()
    pulled = [one.body.decode() for one in pulling.pull(topic)]
    tagged.shutdown()  # commits its offsets
    ordered.shutdown()
    print(json.dumps({"sent": sent, "tagged": of_tag, "ordered": in_order, "pulled": pulled}), flush=True)
    os._exit(0)  # without the library's own end, which waits for its threads


if __name__ == "__main__":
    main(*sys.argv[1:])
