"""Make docs/faults.md: what was tried to break a run, how often, and what was lost.

`make faults` kills runs and fills disks, `make properties` draws cases, `make soak` repeats fits
and measures memory. Each leaves its own part of docs/faults.json, and the page is written from all.
"""

import argparse
import fcntl
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
sys.path.insert(0, str(TESTS))
STORE = HERE / "faults.json"
_AT_ONCE = 4  # kills of a case, before the next has its turn

HEAD = """# Faults, injected

What was done to runs on purpose, how often, and what became of them. Each part comes from the
command that it names, which writes its figures here. The choices come from fixed seeds, the moments
from the machine.
"""
KILLED = """
## Killed

`make faults` · {machine}

A run is killed by `kill -9` at random moments, begun again by the same call, killed again, until it
ends. Three quarters of the kills come soon after a file has been written, the others at any moment
from the start on. The result (parameters, states and the whole history) must be, bit for bit,
that of a run that nobody disturbed. {settings}

| run | kills | of them in the middle of a save | runs completed | results that differ |
| --- | --: | --: | --: | --: |
{table}
"""
FULL = """
## Full disks

`make faults`

A checkpointed fit on a file system that is full for a while, with a random number of bytes left
(this part needs root, to mount one). It must say so, end with the right result, and keep a
checkpoint from which a second call goes on.

{full}

The tests add what needs no luck (`tests/test_fit_faults.py`): a flipped byte or a missing end in
each file of a checkpoint, a missing file, all checkpoints damaged, writes and `fsync` that fail, a
directory removed or taken by another process under way, two runs in one directory, half of a
checkpoint.
"""
DRAWN = """
## Cases drawn

`make properties` · {machine}

{text}
"""
SOAKED = """
## Fits without end

`make soak` · {machine}

{text}
"""


def kills(most: int, full: int, minutes: float, seed: int, more: bool) -> None:
    """Chains of killed runs, case by case and round by round: fits, commands and the race."""
    import killing

    cases = [*killing.fits(), *killing.commands()]
    wanted = {case.name: -(-most // len(killing.fits())) for case in cases}
    total = {name: killing.Chain(0, 0, 0, 0) for name in wanted}
    if more:
        total |= {
            name: killing.Chain(**row)
            for name, row in json.loads(STORE.read_text())["kills"]["rows"].items()
        }
    done = sum(chain.kills for chain in total.values())
    chance, began = random.Random(seed + done), time.monotonic()  # other moments than before
    with tempfile.TemporaryDirectory() as place:
        here = {case.name: Path(place) / case.name.replace(" ", "-") for case in cases}
        if full:
            keep("disks", disks(full, seed))
        alone = {}
        while time.monotonic() - began < 60 * minutes:
            left = [case for case in cases if total[case.name].kills < wanted[case.name]]
            if not left:
                break
            for case in left:
                if case.name not in alone:
                    killing.undisturbed(case, here[case.name] / "compiling")
                    alone[case.name] = killing.undisturbed(case, here[case.name] / "undisturbed")
                rest = min(_AT_ONCE, wanted[case.name] - total[case.name].kills)
                found = killing.chain(case, here[case.name], alone[case.name], rest, chance)
                sums = zip(total[case.name], found, strict=True)
                total[case.name] = killing.Chain(*(a + b for a, b in sums))
                keep("kills", _killed(total))


def _killed(total: dict) -> dict:
    import killing

    settings = (
        f"The fits take {killing.NUM_STEPS:,} steps with a checkpoint every {killing.EVERY}; "
        "`quell reproduce` is run with `--quick` and a plan as small as it goes: its table must be "
        "the same. The race (`benchmarks/race.py --quick`, three contestants on titanic) has a "
        "clock that goes on by a fixed step at every look; all its files must be the same: tuning, "
        "timed runs, replayed gaps and the page's numbers."
    )
    rows = {name: chain._asdict() for name, chain in total.items()}
    return {"rows": rows, "settings": settings, "machine": machine()}


def disks(trials: int, seed: int) -> dict:
    """Fits whose disk is full from a third of their steps on, and has space again for the last."""
    import killing

    import quell

    trials = 0 if os.geteuid() else trials  # only root may mount a file system
    chance = random.Random(seed)
    size, found = 2**21, {"trials": trials, "warned": 0, "right": 0, "resumed": 0}
    with tempfile.TemporaryDirectory() as place:
        expected, _ = killing.undisturbed(killing.fits((1,))[0], Path(place) / "undisturbed")
        for trial in range(trials):
            here = Path(place) / str(trial)  # the log stays outside, where there is room
            disk = here / "disk"
            disk.mkdir(parents=True)
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True
            )
            try:
                left = int(chance.uniform(0, 8_000))  # less than a checkpoint needs
                until = chance.choice([killing.NUM_STEPS * 2 // 3, killing.NUM_STEPS])
                _filled(killing, here, left, until)
                found["warned"] += "could not be written" in (here / "log").read_text()
                found["right"] += (disk / killing.RESULT).read_text() == expected
                (disk / killing.RESULT).unlink()
                _waited(killing, lambda d: killing.trained(quell.monte_carlo, 1, d / "disk"), here)
                found["resumed"] += (disk / killing.RESULT).read_text() == expected
            finally:
                subprocess.run(["umount", disk], check=True)
    return found


def _filled(killing, here: Path, left: int, until: int) -> None:
    """A run whose disk has so many bytes left between a third of its steps and `until`."""
    import quell

    disk = here / "disk"
    filler = disk / "filler"

    def fill(step, params, history):
        if step == killing.NUM_STEPS // 3:
            free = os.statvfs(disk)
            filler.write_bytes(b"0" * max(0, free.f_bavail * free.f_frsize - left))
        elif step == until:
            filler.unlink()

    hook = quell.callback(fill, every=killing.NUM_STEPS // 3)
    _waited(killing, lambda d: killing.trained(quell.monte_carlo, 1, d / "disk", [hook]), here)


def _waited(killing, run, here: Path) -> None:
    if os.waitpid(killing.forked(run, here), 0)[1]:
        raise RuntimeError((here / "log").read_text())


def properties(examples: int) -> None:
    """The properties of `tests/test_properties.py`, with many cases each."""
    environment = {**os.environ, "QUELL_EXAMPLES": str(examples)}
    command = [sys.executable, "-m", "pytest", str(TESTS / "test_properties.py"), "-q"]
    command += ["--hypothesis-profile=long", "--hypothesis-show-statistics"]
    cases, failed = {}, False
    for which in ("not compiled", "compiled"):
        done = subprocess.run(
            [*command, "-m", which],
            env=environment,
            cwd=TESTS.parent,
            capture_output=True,
            text=True,
        )
        failed |= done.returncode != 0
        name = None
        for line in done.stdout.splitlines():
            if line.startswith("tests/test_properties.py::"):
                name = line.partition("::")[2].rstrip(":")
            elif " passing, " in line and name:
                passing = int(line.partition(" passing, ")[0].split()[-1])
                cases[name] = cases.get(name, 0) + passing
        print(done.stdout[-1500:], cases, flush=True)
        keep("properties", {"cases": cases, "failed": failed, "machine": machine()})


def machine() -> str:
    import jax

    cores = os.cpu_count()
    return (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {cores} cores, jax {jax.__version__}"
    )


def page(parts: dict) -> str:
    """docs/faults.md from docs/faults.json; a part that was not run is left out."""
    text = HEAD
    if killed := parts.get("kills"):
        rows = [
            f"| {name} | {row['kills']} | {row['in_a_save']} | {row['completed']} | {row['lost']} |"
            for name, row in [*killed["rows"].items(), ("all", _sums(killed["rows"].values()))]
        ]
        text += KILLED.format(**killed, table="\n".join(rows))
    if disk := parts.get("disks"):
        full = (
            f"{disk['trials']} runs: {disk['warned']} said that a checkpoint could not be "
            f"written, {disk['right']} ended with the right result, {disk['resumed']} went on from "
            "their last good checkpoint to the right result."
        )
        text += FULL.format(full=full)
    if cases := parts.get("properties"):
        text += DRAWN.format(**cases, text=_property_text(cases))
    if soak := parts.get("soak"):
        text += SOAKED.format(**soak, text=_soak_text(soak))
    return text


def _sums(rows) -> dict:
    rows = list(rows)
    return {name: sum(row[name] for row in rows) for name in rows[0]}


def _property_text(part: dict) -> str:
    lines = [
        f"{sum(part['cases'].values()):,} cases over {len(part['cases'])} properties of "
        f"`tests/test_properties.py`; {'some failed' if part['failed'] else 'none failed'}.",
        "",
        "A property that compiles for every case draws a tenth of the cases of the others.",
        "",
        "| property | cases |",
        "| --- | --: |",
    ]
    names = {name: name.removeprefix("test_").replace("_", " ") for name in part["cases"]}
    return "\n".join(lines + [f"| {names[n]} | {count:,} |" for n, count in part["cases"].items()])


def _soak_text(part: dict) -> str:
    arrays, memory, traces = part["arrays"], part["megabytes"], part["traces"]
    return (
        f"{part['fits']:,} fits in {part['seconds'] / 60:.0f} minutes, each with a new objective, "
        f"new data and one of {part['estimators']} estimators. Live arrays: {arrays[0]} after the "
        f"first round, {arrays[1]} at the end. Resident memory, once the C library has given back "
        f"what was freed: {memory[0]:.0f} MB after the first fifth, {memory[1]:.0f} MB at the end, "
        f"{part['kilobytes_per_fit']:.1f} kB per fit by a line through the last four fifths. "
        f"Traces of the losses in a round: {traces[0]} in the first, {traces[1]} in the last."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["kills", "properties", "soak"])
    parser.add_argument("--kills", type=int, default=100, help="kills of fits (default: 100)")
    parser.add_argument("--disks", type=int, default=20, help="that are full (default: 20)")
    parser.add_argument("--examples", type=int, default=2000, help="cases of each property")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most (default: 60)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--more", action="store_true", help="add to the kills of an earlier run")
    args = parser.parse_args()
    if args.part == "kills":
        kills(args.kills, args.disks, args.minutes, args.seed, args.more)
    elif args.part == "properties":
        properties(args.examples)
    else:
        from soaking import soak

        keep("soak", soak(args.minutes) | {"machine": machine()})


def keep(part: str, found: dict) -> None:
    """Store the figures of a part, and write the page anew; the parts may run side by side."""
    with (HERE / "make_faults.py").open() as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        parts = json.loads(STORE.read_text()) if STORE.exists() else {}
        parts[part] = found
        for path, text in (
            (STORE, json.dumps(parts, indent=1) + "\n"),
            (HERE / "faults.md", page(parts)),
        ):
            path.with_suffix(".part").write_text(text)
            os.replace(path.with_suffix(".part"), path)


if __name__ == "__main__":
    main()
