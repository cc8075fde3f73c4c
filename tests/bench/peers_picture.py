#!/usr/bin/env python3
"""A picture of the JSON lines of language_vs_peer.py, smollm2_vs_peer.py and control_vs_peer.py: how many times as fast as the best peer each case is.

    tests/bench/peers_picture.py FILE.jsonl... > docs/images/peers.svg

Takes the lines that compare speed with a peer, in their order; of a case that is there twice the last line counts. A picture is of one
processor: lines of another one are refused. Exit code 1 for files that no picture can be made of.
"""

import html
import json
import math
import pathlib
import sys

# Which cases of a benchmark are speed beside a peer, and what the picture calls them. Of language_vs_peer all are that have a peer.
NAMES = {
    "smollm2_vs_peer": {"seconds per step": "GRPO step, SmolLM2 on products", "seconds of the whole run": "GRPO, the whole run"},
    "control_seconds": {"cartpole": "PPO on CartPole, whole job", "pendulum": "PPO on Pendulum, whole job"},
}
PEERS = {"trl": "TRL"}
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 920, 350, 170, 84, 24, 14
# Colours stand in the rules themselves: what draws pages without a browser often knows no CSS variables.
STYLE = """
text{font-family:system-ui,sans-serif;font-size:13px;fill:#1f2933}.title{font-size:16px}.small{font-size:12px;fill:#52606d}
.paper{fill:#fbfbf9}.fast{fill:#2563eb}.missed{fill:#c2410c}.soft{stroke:#c4ccd4}.one,.goal{stroke:#1f2933}.goal{stroke-width:2.5}
@media(prefers-color-scheme:dark){text{fill:#e3e8ed}.small{fill:#a3b0bc}.paper{fill:#14191f}.fast{fill:#6ea0ff}.missed{fill:#f0883c}.soft{stroke:#4b5763}.one,.goal{stroke:#e3e8ed}}
"""


def comparison(line):
    """(name, ratio, peer, goal) of a line that compares speed with a peer, else None."""
    bench, case, peer = line["bench"], line.get("case", ""), line.get("baseline")
    name = case if bench == "language_vs_peer" else NAMES.get(bench, {}).get(case)
    if not name or not peer or not line.get("ratio"):
        return None
    peer = peer.split()[0]  # without its setting
    return name, line["ratio"], PEERS.get(peer, peer), line.get("goal")


def read(paths):
    """The comparisons by name, and where they are from: (processor, instruction sets, threads, commits)."""
    found, processor, sets, threads, commits = {}, None, [], None, []
    for path in paths:
        for number, text in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                drawn = comparison(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                sys.exit(f"{path}:{number}: expected a JSON object as the programs with _vs_peer print it, found {text[:60]}")
            if drawn is None:
                continue
            here = line["machine"].split(",")[0]  # smollm2_vs_peer says the cores behind it
            if processor not in (None, here):
                sys.exit(f"{path}:{number}: measured on {here}, the lines before on {processor}; make a picture of each")
            processor, sets = here, sets or line.get("instruction_sets", [])
            threads = threads or (line["config"].get("threads") if isinstance(line.get("config"), dict) else None)
            if line["commit"] not in commits:
                commits.append(line["commit"])
            found[drawn[0]] = drawn[1:]
    if not found:
        sys.exit(f"{', '.join(paths)}: no line compares speed with a peer")
    return found, (processor, sets, threads, commits)


def picture(found, machine):
    processor, sets, threads, commits = machine
    low = min([1.0] + [ratio for ratio, _, _ in found.values()])
    high = max([2.0] + [max(ratio, goal or 0) for ratio, _, goal in found.values()])
    ticks = [base * 10**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for base in (1, 2, 5)]
    low = max(tick for tick in ticks if tick <= low)
    ticks = [tick for tick in ticks if low <= tick <= high]

    def x(value):
        return round(LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low), 1)

    bottom = TOP + ROW * len(found)
    height = bottom + 64
    out = []

    def put(text_x, y, text, more=""):
        out.append(f'<text x="{text_x}" y="{y}"{more}>{html.escape(text)}</text>')

    title = "Times as fast as the best peer"
    out.append(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">')
    out.append(f"<title>{title}</title>\n<style>{STYLE}</style>")
    out.append(f'<rect x="0" y="0" width="{WIDTH}" height="{height}" class="paper"/>')
    put(20, 28, title, ' class="title"')
    out.append('<rect x="20" y="41" width="12" height="12" class="fast"/><rect x="180" y="41" width="12" height="12" class="missed"/>'
               '<line x1="292" y1="39" x2="292" y2="55" class="goal"/>')
    for at, text in ((38, "goal reached, or none"), (198, "goal missed"), (301, "goal"), (LEFT, "every peer in its fastest setting that was found; logarithmic")):
        put(at, 52, text, ' class="small"')
    for tick in ticks:
        out.append(f'<line x1="{x(tick)}" y1="{TOP - 4}" x2="{x(tick)}" y2="{bottom}" class="{"one" if tick == 1 else "soft"}"/>')
        put(x(tick), TOP - 9, f"{tick:g}", ' class="small" text-anchor="middle"')
    for row, (name, (ratio, peer, goal)) in enumerate(found.items()):
        y = TOP + ROW * row + (ROW - BAR) // 2
        begin, end = sorted((x(1), x(ratio)))
        missed = goal is not None and ratio < goal
        put(LEFT - 12, y + BAR - 3, name, ' text-anchor="end"')
        out.append(f'<rect x="{begin}" y="{y}" width="{max(1, round(end - begin, 1))}" height="{BAR}" class="{"missed" if missed else "fast"}"/>')
        if goal is not None:
            out.append(f'<line x1="{x(goal)}" y1="{y - 3}" x2="{x(goal)}" y2="{y + BAR + 3}" class="goal"/>')
        behind = max(end, x(goal) if goal is not None else 0) + 8
        put(behind, y + BAR - 3, f"{ratio:.3g} × {peer}" + (f", goal {goal:g}" if goal is not None else ""))
    put(20, bottom + 28, processor + (f", {threads} threads" if threads else "") + (f"; instruction sets {', '.join(sets)}" if sets else ""), ' class="small"')
    put(20, bottom + 46, f"commit {', '.join(commits)}; by the programs of tests/bench whose names end in _vs_peer.py (make bench-peers)", ' class="small"')
    out.append("</svg>")
    return "\n".join(out)


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    try:
        print(picture(*read(sys.argv[1:])))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
