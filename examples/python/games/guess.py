"""Thinks of a number from 1 to 8, and says whether it is more or less than what was guessed."""
import random

from tidepool_env import environment, serve


@environment(max_turns=6, characters="12345678-?moreless", actions="12345678")
def guess(seed):
    number = str(random.Random(seed).randint(1, 8))
    said = "1-8?"
    while True:
        action = (yield said).strip()
        if action == number:
            return 1.0
        said = "?" if action not in tuple("12345678") else "more" if action < number else "less"


if __name__ == "__main__":
    serve(guess)
