"""Whether Spark is there: it is named when it is not, and waited for while it is being installed."""

from __future__ import annotations

import fcntl
import importlib.util
import threading
from pathlib import Path
from typing import Any

import pytest

from app.audit import spark


def test_what_is_missing_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = importlib.util.find_spec

    def without_spark(name: str, *more: Any) -> Any:
        return None if name == "pyspark" else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without_spark)
    with pytest.raises(spark.NoSpark, match=r"pyspark missing.*make setup.*quorumscope\[audit\]"):
        spark.await_spark(lambda _: None, tmp_path)


def test_it_is_waited_for_while_it_is_being_installed(tmp_path: Path) -> None:
    lock = tmp_path / spark.LOCK_FILE
    said: list[str | None] = []
    waiting = threading.Event()

    def note(reason: str | None) -> None:
        said.append(reason)
        waiting.set()

    with lock.open("wb") as installer:
        fcntl.flock(installer, fcntl.LOCK_EX)
        audit = threading.Thread(target=spark.await_spark, args=(note, tmp_path))
        audit.start()
        assert waiting.wait(30)
        assert said == [spark.WAITING]
        assert audit.is_alive()
    audit.join(30)
    assert said == [spark.WAITING, None]


def test_nothing_is_said_where_nothing_is_being_installed(tmp_path: Path) -> None:
    said: list[str | None] = []
    spark.await_spark(said.append, tmp_path)
    (tmp_path / spark.LOCK_FILE).touch()
    spark.await_spark(said.append, tmp_path)
    assert said == []
