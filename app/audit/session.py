"""Starts Spark for an audit, small and quiet, with our modules shipped to wherever the tasks run.

Invariants: a local session listens on loopback only, asks whoever connects for a secret of its own, and opens no UI;
workers run this Python; what they import of ours comes from the archive, never from the machine they happen to run on.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

from app.audit.java import find_java_home
from app.resources import code_root
from node.children import how_ended

LOCAL = "local[*]"
# Its connections break a moment before its process is seen to be gone.
ENDING_S: Final = 1.0
# What a task needs: the comparison and the values it decodes.
SHIPPED = (
    "app/__init__.py",
    "app/answer_time.py",
    "app/refusals.py",
    "app/audit/*.py",
    "node/__init__.py",
    "node/message_store/**/*.py",
    "node/private_files.py",
    "node/protocol/*.py",
    "node/store/**/*.py",
    "node/views/*.py",
)
# A driver that only hands out ranges: a short start counts for more than peak throughput.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -XX:-UsePerfData"


def pack_modules(target: Path) -> Path:
    """Writes the archive for --py-files."""
    root = code_root()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for pattern in SHIPPED:
            for path in sorted(root.glob(pattern)):
                archive.write(path, path.relative_to(root))
    return target


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def submit_args(master: str, modules: Path, log_config: Path) -> list[str]:
    """What must be known before the JVM starts."""
    args = ["--py-files", str(modules), "--driver-memory", "768m"]
    if is_local(master):
        args += ["--driver-java-options", f"{JAVA_OPTIONS} -Dlog4j2.configurationFile={log_config.as_uri()}"]
    return [*args, "pyspark-shell"]


LOG_CONFIG = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
"""


def start_session(master: str = LOCAL, app_name: str = "quorumscope audit", work_dir: Path | None = None) -> Any:
    """A SparkSession; takes several seconds. Raises NoJava, or whatever Spark says of the master."""
    directory = work_dir or Path(tempfile.mkdtemp(prefix="quorumscope-spark-"))
    modules = pack_modules(directory / "quorumscope-modules.zip")
    log_config = directory / "log4j2.properties"
    log_config.write_text(LOG_CONFIG)
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONSAFEPATH"] = "1"  # workers must not find another `app` in the current folder
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(submit_args(master, modules, log_config))
    if is_local(master):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app_name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.enabled": "false",
        # Plans of one operator: compiling them costs more than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    if is_local(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Its ports read what any local user sends as Java objects, which may be code; local sessions draw the secret.
        settings["spark.authenticate"] = "true"
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def how_jvm_ended(session: Any) -> str | None:
    """None while it runs, or where it is another machine's. Python itself says no more than "connection refused", which
    sounds as if a member had refused."""
    process = None if session is None else session.sparkContext._gateway.proc
    if process is None:
        return None
    try:
        code = process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        return None
    hint = "; the kernel's log says whether this machine was out of memory" if code == -signal.SIGKILL else ""
    return f"Spark's JVM {how_ended(code)}{hint}; this says nothing of the replicas: start the audit again"
