"""Environments for Tidepool in Python.

    import random
    from tidepool_env import environment, serve

    @environment(max_turns=8)
    def guess(seed):
        number = random.Random(seed).randint(1, 8)
        said = "1 to 8?"
        while True:
            action = yield said
            if action.strip() == str(number):
                return 1.0
            said = "No."

    if __name__ == "__main__":
        serve(guess)

Models that call tools: tidepool_env.tools, tidepool_env.mcp and tidepool_env.sandbox (docs/tools.md of Tidepool).
@vector makes one of numbers for a small policy (vector.py), gymnasium_environment one of any of Gymnasium's (gymnasium.py).
`tidepool-env check FILE` tells whether it keeps the rules.
"""

from .definition import BadEpisode, Call, Environment, Message, Said, Step, environment
from .service import serve
from .vector import VectorEnvironment, vector

__all__ = ["BadEpisode", "Call", "Environment", "Message", "Said", "Step", "VectorEnvironment", "environment", "serve", "vector"]
