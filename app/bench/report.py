"""The tables of a measurement: the machine in one line, then the rows. Takes what `--json` prints."""

from __future__ import annotations

from typing import Any, Final

HEADING: Final = (
    f"{'system':<12} {'flush':<6} {'in flight':>9} {'batch':>6} {'entries/s':>12}"
    f" {'MB/s':>8} {'p50 ms':>9} {'p99 ms':>9} {'CPU us/entry':>13}"
)


def on_machine(machine: dict[str, Any]) -> str:
    """Where the numbers come from."""
    cpu, step_ns = machine["cpu"] or "unknown CPU", machine["python_step_ns"]
    plain = "build without profile-guided optimisation on record"  # some packages have it and do not say so
    build = "profile-guided build" if machine["python_optimised"] else plain
    return (
        f"on {machine['cpus']} cores ({cpu}), {machine['memory_mb'] / 1024:.0f} GiB, Python {machine['python']},"
        f" Linux {machine['kernel']}\n"
        f"Python: {build}; a step of fixed work takes {step_ns['median']:.0f} ns"
        f" ({step_ns['least']:.0f} to {step_ns['most']:.0f})\n"
        f"disk: {machine['file_system'] or 'unknown file system'}, fdatasync {machine['fdatasync_ms']:.3f} ms"
        f" (p99 {machine['fdatasync_p99_ms']:.3f} ms); load when it began: {machine['load_1m']:.2f}"
    )


def append_table(result: dict[str, Any]) -> list[str]:
    """One line a case and system, then ratios, then memory."""
    lines = [HEADING]
    for row in result["results"]:
        cpu_us = row["cpu_us_per_entry"]
        lines.append(
            f"{row['system']:<12} {row['flush']:<6} {row['in_flight']:>9,} {row['batch']:>6,}"
            f" {row['entries_per_s']:>12,.0f} {row['mb_per_s']:>8,.1f} {row['p50_ms']:>9.3f} {row['p99_ms']:>9.3f}"
            f" {'' if cpu_us is None else format(cpu_us, '.2f'):>13}"
        )
    for name, ratio in result["ratios"].items():
        least, most = result["ratio_spread"][name]
        lines.append(f"{ratio:.1f} times (rounds: {least:.1f} to {most:.1f}) {name}")
    memory = ", ".join(f"{name} {mb:.0f}" for name, mb in result["rss_anon_mb"].items() if mb is not None)
    lines.append(f"private memory at the end, MB: {memory}")
    return lines


def ha_table(result: dict[str, Any]) -> list[str]:
    """A master and its slave: sends that wait, lag, catching up."""
    lines = []
    for name, words in (("sync_one", "SYNC_MASTER, one at a time"), ("sync_many", "SYNC_MASTER, many in flight")):
        row = result[name]
        cpu_us = row["cpu_us_per_send"]
        cost = "" if cpu_us is None else f", CPU {cpu_us:.1f} us a send"
        lines.append(
            f"{words:<28} {row['in_flight']:>5,} in flight {row['sends_per_s']:>9,.0f} a second,"
            f" p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms{cost}"
        )
    lag, there = result["lag"], result["catch_up"]
    lines.append(
        f"ASYNC_MASTER, {lag['sends_per_s']:,.0f} sends a second: the slave is {lag['lag_p50_ms']:.0f} ms behind"
        f" (p99 {lag['lag_p99_ms']:.0f} ms, {lag['looks']} looks)"
    )
    lines.append(
        f"an empty slave: {there['bytes'] / 1e6:,.0f} MB in {there['seconds']:.1f} s ({there['mb_per_s']:,.0f} MB/s),"
        f" in its queues after {there['dispatched_seconds']:.1f} s ({there['messages_per_s']:,.0f} messages a second)"
    )
    return lines


def kv_table(result: dict[str, Any]) -> list[str]:
    """One line for each kind of request."""
    first = result["results"][0]
    lines = [f"{first['body_bytes']} bytes, {first['in_flight']:,} in flight, flush {first['flush']}"]
    lines.append(f"{'':<8} {'a second':>10} {'p50 ms':>8} {'p99 ms':>8} {'CPU us':>7} {'of singles':>10}")
    for row in result["results"]:
        ratio, spread = result["ratios"].get(row["what"]), result["ratio_spread"].get(row["what"])
        of_singles = "" if ratio is None else f"{ratio:>10.2f}  (rounds: {spread[0]:.2f} to {spread[1]:.2f})"
        cpu_us = "" if row["cpu_us_per_entry"] is None else format(row["cpu_us_per_entry"], ".2f")
        lines.append(
            f"{row['what']:<8} {row['entries_per_s']:>10,.0f} {row['p50_ms']:>8.2f} {row['p99_ms']:>8.2f}"
            f" {cpu_us:>7} {of_singles}"
        )
    return lines


def snapshot_table(result: dict[str, Any]) -> list[str]:
    """With nobody saving, and while all do."""
    lines = [
        f"{result['rate_per_s']:,.0f} puts/s of {result['body_bytes']} bytes over {result['state_mb']:,} MB"
        f" in values of {result['value_bytes']:,} bytes, flush {result['flush']}",
        f"{'while':<10} {'p50 ms':>9} {'p99 ms':>9} {'p99 to nobody':>14}",
    ]
    for row in result["results"]:
        least, most = row["p99_ratio_spread"]
        lines.append(
            f"{row['with']:<10} {row['p50_ms']:>9.3f} {row['p99_ms']:>9.3f} {row['p99_ratio']:>13.2f}x"
            f"  (rounds: {least:.2f} to {most:.2f})"
        )
    lines.append(
        f"a save took {result['saved_median_s']:.1f} s (at most {result['saved_max_s']:.1f} s);"
        f" {result['leader_changes']} leader changes"
    )
    return lines


def install_table(result: dict[str, Any]) -> list[str]:
    """How long an emptied member took."""
    return [
        f"a member with an empty disk, flush {result['flush']}: a snapshot of {result['snapshot_bytes'] / 1e6:,.0f} MB"
        f" and {result['entries']:,} entries behind it",
        f"a voter after {result['voter_s']:.1f} s, and all of it served after {result['serves_s']:.1f} s",
        f"puts at {result['rate_per_s']:,.0f}/s: p99 {result['p99_ms_meanwhile']:.1f} ms in its first seconds, before"
        f" its start {result['p99_ms_control']:.1f} ms",
    ]


def retention_text(result: dict[str, Any]) -> list[str]:
    """The longest gap between two ticks, without the removal and with it."""
    removed = f"{result['files']} files, {result['removed_bytes'] / 2**30:.2f} GiB"
    control_ms, removal_ms = result["tick_gap_max_ms_control"], result["tick_gap_max_ms_removal"]
    return [
        f"{removed} removed in {result['removed_in_s']:.1f} s under {result['rate_per_s']:,.0f} appends/s",
        f"longest gap between two ticks, an engine each: control {control_ms:.1f} ms, removal {removal_ms:.1f} ms",
        f"appends' p99: control {result['p99_ms_control']:.2f} ms, meanwhile {result['p99_ms_removal']:.2f} ms",
    ]


def failover_text(result: dict[str, Any]) -> list[str]:
    """Median, worst, and whether a promise was broken."""
    lost, runs, other = result["lost_acknowledged"], len(result["runs_s"]), result["against"]
    lines = [f"median {result['median_s']:.3f} s, worst {result['max_s']:.3f} s over {runs} failovers"]
    if other is not None:
        lines.append(f"{other['system']}: median {other['median_s']:.3f} s, worst {other['max_s']:.3f} s")
    lines.append(f"{lost} acknowledged entries LOST" if lost else "no acknowledged entry was lost: each was read back")
    return lines


def undisturbed_table(result: dict[str, Any]) -> list[str]:
    """One line for each company that the load had."""
    lines = [f"{result['rate_per_s']:,.0f} single appends/s of {result['body_bytes']} bytes, flush {result['flush']}"]
    lines.append(f"{'with':<10} {'p50 ms':>9} {'p99 ms':>9} {'p99 to nobody':>14}")
    for row in result["results"]:
        least, most = row["p99_ratio_spread"]
        lines.append(
            f"{row['with']:<10} {row['p50_ms']:>9.3f} {row['p99_ms']:>9.3f} {row['p99_ratio']:>13.2f}x"
            f"  (rounds: {least:.2f} to {most:.2f})"
        )
    lines.append(
        f"console: polls every member every {result['console_poll_ms']} ms;"
        f" segments: {result['segment_mb_per_s']:.0f} MB/s were read from the leader"
    )
    return lines


def slow_follower_table(result: dict[str, Any]) -> list[str]:
    """Well, slow, and on the way back."""
    lines = [f"{result['rate_per_s']:,.0f} single appends/s of {result['body_bytes']} bytes, flush {result['flush']}"]
    lines.append(f"{'one follower':<14} {'p50 ms':>9} {'p99 ms':>9} {'p99 to well':>12}")
    for row in result["results"]:
        lines.append(f"{row['phase']:<14} {row['p50_ms']:>9.3f} {row['p99_ms']:>9.3f} {row['p99_ratio']:>11.2f}x")
    lines.append(
        f"caught up {result['catch_up_mb']:,.0f} MB at {result['catch_up_mb_per_s']:,.0f} MB/s under that load,"
        f" at {result['catch_up_alone_mb_per_s']:,.0f} MB/s without one"
    )
    if result["elections"]:
        lines.append(f"{result['elections']} elections happened meanwhile: the machine was too busy to tell much")
    return lines


def slow_network_table(result: dict[str, Any]) -> list[str]:
    """One line for each size of bodies."""
    lines = [f"links of {result['link_mb_per_s']:g} MB/s each way, flush {result['flush']}"]
    lines.append(
        f"{'body bytes':>10} {'in flight':>9} {'MB/s':>7} {'of link':>8} {'acked':>6} {'unknown':>8} {'refused':>8}"
        f" {'elections':>9} {'p50 s':>7} {'p99 s':>7}"
    )
    for row in result["results"]:
        lines.append(
            f"{row['body_bytes']:>10,} {row['in_flight']:>9} {row['acknowledged_mb_per_s']:>7.2f}"
            f" {row['share_of_link']:>8.1%} {row['acknowledged']:>6} {row['unknown_share']:>8.1%} {row['refused']:>8}"
            f" {row['elections']:>9} {row['p50_s']:>7.2f} {row['p99_s']:>7.2f}"
        )
        lines += [f"unknown {why}" for why in row["why_unknown"]]
    engines, at_first = (max(result[f"tick_gap_max_ms{when}"].values(), default=0) for when in ("", "_at_first"))
    links = max((row["links_gap_max_ms"] for row in result["results"]), default=0)
    lines.append(f"longest standstill: links {links} ms; engines {engines:.0f} ms, {at_first:.0f} ms before the load")
    return lines


def latency_text(result: dict[str, Any]) -> list[str]:
    """The three medians, and their ratio."""
    least, most = result["ratio_spread"]
    return [
        f"one at a time, p50: sync {result['sync_p50_ms']:.3f} ms, async {result['async_p50_ms']:.3f} ms,"
        f" one fdatasync {result['fdatasync_ms']:.3f} ms",
        f"sync is {result['ratio']:.2f} times async and one fdatasync (rounds: {least:.2f} to {most:.2f})",
    ]


def stalls_text(result: dict[str, Any]) -> list[str]:
    """How many leaderships were lost."""
    lines = [f"{result['runs']} stalls of {result['members']} engines, {result['median_s']:.2f} s (median) to"]
    lines[0] += f" {result['max_s']:.2f} s, skew up to {1000 * result['skew_s']:g} ms: {result['leader_changes']}"
    lines[0] += " leader changes"
    if result["load"]:
        lines.append(f"{result['acknowledged']:,} appends acknowledged meanwhile, {result['unknown']} unknown")
    return lines


def busy_text(result: dict[str, Any]) -> list[str]:
    """The longest gaps, and what they cost."""
    cores = ", ".join(map(str, result["cores"]))
    lines = [f"{result['seconds']:g} s beside {result['burners']} busy processes on cores {cores}"]
    gaps = ", ".join(f"{member} {gap_ms:.0f} ms" for member, gap_ms in result["tick_gap_max_ms"].items())
    lines.append(f"longest gap between two ticks: {gaps}; an election begins after {result['election_min_ms']:g} ms")
    lines.append(f"{result['leader_changes']} leader changes, {result['acknowledged']:,} appends acknowledged")
    return lines


def memory_table(result: dict[str, Any]) -> list[str]:
    """One line a process."""
    lines = [f"{result['entries']:,} entries of {result['body_bytes']} bytes in {result['minutes']:g} minutes"]
    lines.append(f"{'process':<12} {'most MB':>9} {'last MB':>9} {'growth MB/h':>12}")
    for row in result["results"]:
        lines.append(
            f"{row['process']:<12} {row['max_mb']:>9.1f} {row['last_mb']:>9.1f} {row['growth_mb_per_h']:>12.1f}"
        )
    return lines


def sentences_table(result: dict[str, Any]) -> list[str]:
    """One line a break; then what was false, in its own words."""
    lines = [
        f"{'break':<22} {'runs':>5} {'p50 s':>6} {'p95 s':>6} {'max s':>6} {'unseen':>7} {'disturbed':>10} {'false':>6}"
    ]
    for row in result["results"]:
        took = " ".join(f"{'-' if row[name] is None else row[name]:>6}" for name in ("p50_s", "p95_s", "max_s"))
        lines.append(
            f"{row['case']:<22} {row['runs']:>5} {took} {row['unseen']:>7} {row['disturbed']:>10} {row['false']:>6}"
        )
    lines += [f"false: {row['case']}, {text}" for row in result["results"] for text in row["false_sentences"]]
    lines.append(
        f"from knowable to the right sentence: p95 {result['p95_s']:.2f} s, at most {result['max_s']:.2f} s;"
        f" {result['false']} false sentences; the group was looked at every {result['look_every_s']:g} s"
    )
    return lines


def attacked_table(result: dict[str, Any]) -> list[str]:
    """One line an attack; then what is beyond its bound."""
    lines = [
        f"{result['rate_per_s']:g} appends/s for {result['seconds']:g} s beside each attack and beside its control"
    ]
    names = ("of rate", "p50 ms", "p99 ms", "control", "ratio", "leader", "MB more")
    lines.append(f"{'attack':<20}" + "".join(f"{name:>9}" for name in names))
    for row in result["attacks"]:
        figures = [
            row[name] if row.get(name) is not None else "-"
            for name in ("rate_kept", "p50_ms", "p99_ms", "control_p99_ms", "p99_ratio")
        ]
        figures += ["stayed" if row["leader_kept"] else "changed", row["growth_mb"]]
        lines.append(f"{row['name']:<20}" + "".join(f"{figure:>9}" for figure in figures))
    lines += [f"beyond its bound: {row['name']}: {text}" for row in result["attacks"] for text in row["beyond"]]
    return lines


def messages_table(result: dict[str, Any]) -> list[str]:
    """One line a case, then what has no rate."""
    lines = [f"{result['body_bytes']} bytes, {result['in_flight']:,} in flight, flush {result['flush']}"]
    lines.append(
        f"{'':<18} {'a second':>10} {'p50 ms':>8} {'p99 ms':>8}   CPU us of a message: in all, master's broker and"
        " engine, another broker and engine, client"
    )
    for row in result["results"]:
        cpu = row["cpu_us"]
        names = ("all", "master's broker", "master's engine", "another broker", "another engine", "client")
        p50, p99 = ("" if row[name] is None else format(row[name], ".2f") for name in ("p50_ms", "p99_ms"))
        in_step = "" if row["in_step_s"] is None else f"; all three in step after {row['in_step_s']:.3f} s"
        costs = ", ".join(format(cpu[name], ".1f") for name in names)
        lines.append(f"{row['case']:<18} {row['messages_per_s']:>10,.0f} {p50:>8} {p99:>8}   {costs}{in_step}")
    seen, part = result["seen_ms"], result["at_part_of_load"]
    lines.append(f"the engine's appends one at a time: p50 {result['engine_one_at_a_time_p50_ms']:.2f} ms")
    lines.append(f"at a waiting consumer after the acknowledgement: p50 {seen['p50']:.2f} ms, p99 {seen['p99']:.2f} ms")
    lines.append(
        f"an even {part['per_s']:,} sends a second: p50 {part['p50_ms']:.2f} ms, p99 {part['p99_ms']:.2f} ms,"
        f" {part['leader_changes']} changes of the leader"
    )
    lines.append(
        f"a plain group's appends beside it: p99 {part['engine_p99_ms']:.2f} ms, {part['engine_p99_ratio']:.2f} times"
        f" those alone ({part['engine_p99_alone_ms']:.2f} ms)"
    )
    killed = result["failover"]
    if killed is not None:
        for name, what, unit in (
            ("send_s", "from the master's kill to the next send that is stored", "s"),
            ("consume_s", "to that message at the consumer", "s"),
            ("to_master_ms", "from the election to MASTER", "ms"),
        ):
            found = killed[name]
            lines.append(f"{what}: median {found['median']} {unit}, worst {found['most']} {unit}" if found else what)
        lines.append(f"acknowledged and lost: {killed['lost_acknowledged']}; came again: {killed['repeated']}")
    lines.append(f"load at the end: {result['load_1m_at_end']}")
    return lines
