"""Puzzles of a few files in a sandbox with a shell: find the line that names a colour, and change it. What counts is what the files
are afterwards."""
import random

from tidepool_env import serve
from tidepool_env.sandbox import Limits, Sandbox
from tidepool_env.tools import Task, shell, tool_environment

COLOURS = ("red", "green", "blue", "white", "black")
NAMES = ("lamp", "door", "roof", "wall", "boat", "bike")


@tool_environment(max_turns=6, sandboxed=True, loss="pinned", actions=["done"])
def edit_files(seed):
    rng = random.Random(seed)
    things = {name: rng.choice(COLOURS) for name in rng.sample(NAMES, 3)}
    name = rng.choice(sorted(things))
    wanted = rng.choice([colour for colour in COLOURS if colour != things[name]])
    with Sandbox(Limits(seconds=5, work_bytes=1 << 20)) as box:
        for thing, colour in things.items():
            box.write(f"{thing}.txt", f"name={thing}\ncolour={colour}\n")
        yield Task(f"There are files in the current folder. Make the {name} {wanted}: change its colour there, and nothing else. Say done.", tools=[shell(box)])
        right = {thing: f"name={thing}\ncolour={wanted if thing == name else colour}\n" for thing, colour in things.items()}
        return 1.0 if {thing: box.read(f"{thing}.txt") for thing in things} == right else 0.0


if __name__ == "__main__":
    serve(edit_files)
