"""A model that learns a game by playing against itself: each game takes two sessions of a run with rollout.endpoint, one for each player.

Both players first lay 1 to 4 stones on a heap, without seeing what the other lays; then they take 1 or 2 in turns, and who takes the last stone wins.
Some games are against a player who draws lots: what the model wins there says how well it plays.
"""
import concurrent.futures
import http.client
import json
import pathlib
import random
import sys
import threading
import time
import urllib.request

MATCHMAKER = threading.Lock()  # one game at a time takes its sessions: else each of several would hold one and wait for its second
ERRORS = (OSError, ValueError, http.client.HTTPException)  # no sample waits (429), the run begins or ends


def post(url, key, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


class Model:
    """One player of a game: a session of the run. What was said so far is its prompt; all samples of a group begin alike."""

    def __init__(self, session):
        self.session, self.said = session, ""

    def move(self, told):
        self.said += told
        body = {"prompt": self.said}
        answer = post(f"{self.session['base_url']}/completions", self.session["key"], body)["choices"][0]["text"]
        self.said += answer
        return answer

    def ends(self, reward):
        post(self.session["base_url"][:-3] + "/reward", self.session["key"], {"reward": reward})


class Lots:
    """Draws its moves: never an illegal one."""

    def move(self, told):
        return str(random.randint(1, 4) if told == "a:" else random.randint(1, min(2, int(told.strip("d:")))))

    def ends(self, reward):
        pass


def game(players):
    """Who wins, 0 or 1. An illegal move loses."""
    laid = [player.move("a:") for player in players]
    for i, stones in enumerate(laid):
        if stones not in tuple("1234"):
            return 1 - i
    heap, turn = sum(map(int, laid)), 0
    while True:
        taken = players[turn].move(f"d{heap}:")
        if taken not in ("1", "2") or int(taken) > heap:
            return 1 - turn
        heap -= int(taken)
        if heap == 0:
            return turn
        turn = 1 - turn


def take(file):
    """Two sessions, or one where none else waits for a while: then its game is against lots."""
    with MATCHMAKER:
        run = json.loads(file.read_text())
        players = [Model(post(run["url"] + "/sessions", run["key"], {}))]
        if random.random() < 0.8:
            try:
                players.append(Model(post(run["url"] + "/sessions", run["key"], {})))
            except ERRORS:
                pass
        return players


def play(file, won):
    begins = time.monotonic() + 120  # at the latest
    while file.exists() or (not won and time.monotonic() < begins):  # the run has its endpoint as long as it goes on
        try:
            players = take(file)
            measured = len(players) == 1
            if measured:
                players.append(Lots())
            random.shuffle(players)  # who begins
            winner = game(players)
            for i, player in enumerate(players):
                player.ends(float(i == winner))
            if measured:
                won.append(isinstance(players[winner], Model))
        except ERRORS:
            time.sleep(0.1)


if __name__ == "__main__":
    won = []  # against lots
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for _ in range(16):
            pool.submit(play, pathlib.Path(sys.argv[1], "endpoint.json"), won)
    if not won:
        sys.exit(f"nothing was played: is a run with rollout.endpoint going on in {sys.argv[1]}?")
    some = max(1, len(won) // 10)
    print(f"{len(won)} games against lots; won of the first tenth {sum(won[:some]) / some:.2f}, of the last {sum(won[-some:]) / some:.2f}")
