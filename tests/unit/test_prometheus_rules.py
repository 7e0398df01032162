"""The alert rules on series that were recorded from real breaks of the demo (tests/process/record_breaks.py, of a pair
record_pair_breaks.py): each rule fires in its breaks, and is silent in all others and before each of them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.console.metrics import PREFIX
from tests.prepare import find_promtool

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs/deploy/prometheus"
RULES = DEPLOY / "quorumscope.rules.yml"
RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "prometheus_series.json").read_text())
# What fires at some moment of a break, of which the recording has 70 seconds.
FIRES = {
    "quiet": set(),
    "partition": {"FollowerBehind"},
    "pause": {"EngineSilent", "FollowerBehind"},
    "flip": {"DamageFound"},
    "elections": {"LeadershipMovesOften"},
    "bad file": {"Alarm"},
    "disk nearly full": {"DiskNearlyFull", "ConsoleDiskNearlyFull"},
    "disk full": {"DiskNearlyFull", "ConsoleDiskNearlyFull", "Alarm", "CriticalProblem", "GroupTakesNoWrites"},
    "console stopped": {"ConsoleDown"},
    "database locked": {"ConsoleCannotWrite", "CriticalProblem"},
    "two nodes gone": {"NodeDown", "NoLeader", "CriticalProblem", "GroupTakesNoWrites"},
    "pair: quiet": set(),
    "pair: slave stopped": {"PairBrokerSilent", "PairSlaveBehind"},
    "pair: both slaves stopped": {"PairBrokerSilent", "PairSlaveBehind", "PairSendsNotOnSlaves", "PairProblem"},
    "pair: master killed": {"NodeDown", "PairNoMaster", "PairSlaveNotServed", "PairProblem"},
    "pair: slave forked": {"PairSlaveNotServed", "PairSlaveDiverged", "PairProblem"},
}
needs_promtool = pytest.mark.skipif(find_promtool() is None, reason="NOT RUN: no promtool on this machine")


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    tool = find_promtool()
    assert tool is not None
    return subprocess.run([tool, *words], capture_output=True, text=True, cwd=DEPLOY, timeout=120)


def rules() -> list[str]:
    return re.findall(r"- alert: Quorumscope(\w+)", RULES.read_text())


def test_every_rule_was_seen_to_fire() -> None:
    assert len(rules()) == len(set(rules()))
    assert set(rules()) == set().union(*FIRES.values())
    assert set(FIRES) == set(RECORDED["breaks"])


@needs_promtool
def test_promtool_takes_rules_and_configuration() -> None:
    checked = promtool("check", "rules", RULES.name)
    assert checked.returncode == 0 and f"{len(rules())} rules found" in checked.stdout, checked
    checked = promtool("check", "config", "--syntax-only", "prometheus.yml")
    assert checked.returncode == 0, checked


@needs_promtool
@pytest.mark.parametrize("broken", FIRES)
def test_a_break_fires_its_rules_and_no_others(broken: str, tmp_path: Path) -> None:
    series = RECORDED["breaks"][broken]
    scrapes = {len(values.split()) for values in series.values()}
    assert scrapes == {18}
    interval_s = RECORDED["interval_s"]
    quiet_s, end_s = (RECORDED["quiet_scrapes"] - 1) * interval_s, 17 * interval_s
    ever = f"group by (alertname) (max_over_time(ALERTS{{alertstate='firing'}}[{end_s}s]))"
    checks = [
        {"expr": ever, "eval_time": f"{quiet_s}s", "exp_samples": []},
        {
            "expr": ever,
            "eval_time": f"{end_s}s",
            "exp_samples": [{"labels": f'{{alertname="Quorumscope{name}"}}', "value": 1} for name in FIRES[broken]],
        },
    ]
    case = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{interval_s}s",
        "tests": [
            {
                "interval": f"{interval_s}s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": checks,
            }
        ],
    }
    file = tmp_path / "case.yml"
    file.write_text(json.dumps(case))  # JSON is YAML
    tested = promtool("test", "rules", str(file))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def metrics_of_the_code() -> set[str]:
    """Names that nodes and console give, as far as they are written out there."""
    files = ("node/control/metrics.py", "node/control/ha_metrics.py", "app/console/metrics.py")
    text = "".join((ROOT / path).read_text() for path in files)
    found = set(re.findall(r"quorumscope_[a-z_]+", text))
    found |= {f"quorumscope_ha_slave_{name}" for name in re.findall(r'name\("([a-z_]+)"\)', text)}
    found |= {f"{PREFIX}_{name}" for name in re.findall(r'family\(\s*"([a-z_]+)"', text)}
    for gauges, prefix in re.findall(r'(\w+_GAUGES):\n.*?f"(quorumscope_[a-z_]*)\{name\}"', text, re.DOTALL):
        names = re.search(rf"{gauges}: Final = \((.*?)\)", text, re.DOTALL)
        assert names is not None
        found |= {prefix + name for name in re.findall(r'"(\w+)"', names[1])}
    return found


@pytest.mark.parametrize("file", ["quorumscope.rules.yml", "grafana-dashboard.json"])
def test_rules_and_dashboard_name_metrics_that_there_are(file: str) -> None:
    text = (DEPLOY / file).read_text()
    named = set(re.findall(r"\bquorumscope_[a-z_]+\b", text))
    assert len(named) >= 8
    assert named - metrics_of_the_code() == set()


def test_the_dashboard_is_whole() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    panels = [one for one in board["panels"] if one["type"] != "row"]
    assert board["title"] == "Quorumscope" and len(panels) >= 10
    assert len({one["id"] for one in panels}) == len(panels)
    asked = [target["expr"] for one in panels for target in one["targets"]]
    assert all(asked)
    disks = {one for one in metrics_of_the_code() if "_disk_" in one}
    assert len(disks) == 4 and not [one for one in disks if not any(one in text for text in asked)]


def test_the_runbooks_that_alerts_link_to_are_there() -> None:
    from app.console.docs_pages import anchor

    for path, _, heading in re.findall(r"runbook: (\S+?\.md)(#(\S+))?\n", RULES.read_text()):
        headings = {anchor(one) for one in re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)}
        assert not heading or heading in headings, f"{path}#{heading}"
