"""Nine places; the goal is at the right end, a step costs 0.1. Choices: 0 left, 1 right."""

import random

from tidepool_env import serve, vector


@vector(observations=1, choices=2, max_episode_steps=40, solved_return=0.3)
class Corridor:
    def reset(self, seed):
        self.place = random.Random(seed).randint(0, 4)
        return [self.place / 4 - 1]

    def step(self, action):
        self.place = max(0, min(8, self.place + (1 if action == 1 else -1)))
        there = self.place == 8
        return [self.place / 4 - 1], 1.0 if there else -0.1, there, False, {}


if __name__ == "__main__":
    serve(Corridor)
