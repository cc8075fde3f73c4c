"""Asks for a sum or a product of two numbers, and has a tool that knows it. A model that is made from nothing learns to call it.

    python3 calculator.py                  serves
    python3 calculator.py --traces 2000    writes conversations that show how, for a supervised warm start
"""
import json
import random
import sys

from tidepool_env import serve
from tidepool_env.tools import call, tool, tool_environment


@tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@tool
def mul(a: int, b: int) -> int:
    """The product of two numbers."""
    return a * b


def drawn(seed):
    rng = random.Random(seed)
    return rng.randint(10, 99), rng.choice((add, mul)), rng.randint(10, 99)


# announce: a model of a few characters a second was shown its tools, and is not told of them in every prompt.
@tool_environment(tools=[add, mul], max_turns=3, announce=False, actions=[call("add", a=12, b=30), call("mul", a=7, b="8"), "42"])
def calculator(seed):
    a, wanted, b = drawn(seed)
    answer = yield f"{a}{'+' if wanted is add else '*'}{b}="
    return 1.0 if answer.strip() == str(wanted.call(a, b)) else 0.0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--traces"]:
        for seed in range(int(sys.argv[2])):
            a, wanted, b = drawn(f"trace {seed}")
            result = str(wanted.call(a, b))
            print(json.dumps({"messages": [{"role": "user", "content": f"{a}{'+' if wanted is add else '*'}{b}="},
                                           {"role": "assistant", "content": call(wanted.name, a=a, b=b)},
                                           {"role": "tool", "content": result}, {"role": "assistant", "content": result}]}))
    else:
        serve(calculator)
