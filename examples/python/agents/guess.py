"""Thinks of a number from 1 to 8, asks a model until it is found, and says how good that was: an agent of a run with rollout.endpoint."""
import concurrent.futures
import http.client
import json
import pathlib
import random
import sys
import time
import urllib.error
import urllib.request


def post(url, key, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def play(base_url, key, number, turns=6):
    """What any program does with an OpenAI-style endpoint. Returns how good it was."""
    said = "1-8?"
    for turn in range(turns):
        guess = post(f"{base_url}/completions", key, {"prompt": said})["choices"][0]["text"]
        if guess == str(number):
            return 1 - turn / turns
        said += guess + ("?" if guess not in tuple("12345678") else "more" if guess < str(number) else "less")
    return 0.0


def agent(file, rewards):
    begins = time.monotonic() + 120  # at the latest
    while file.exists() or (not rewards and time.monotonic() < begins):  # the run has its endpoint as long as it goes on
        try:
            run = json.loads(file.read_text())
            session = post(run["url"] + "/sessions", run["key"], {})
            reward = play(session["base_url"], session["key"], random.Random(session["ordinal"]).randint(1, 8))
            post(session["base_url"][:-3] + "/reward", session["key"], {"reward": reward})
            rewards.append(reward)
        except (OSError, ValueError, http.client.HTTPException):  # no sample waits (429), the run begins or ends: the next one
            time.sleep(0.1)


if __name__ == "__main__":
    rewards = []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(agent, pathlib.Path(sys.argv[1], "endpoint.json"), rewards)
    if not rewards:
        sys.exit(f"nothing was played: is a run with rollout.endpoint going on in {sys.argv[1]}?")
    some = max(1, len(rewards) // 10)
    print(f"{len(rewards)} episodes; mean reward of the first tenth {sum(rewards[:some]) / some:.3f}, of the last {sum(rewards[-some:]) / some:.3f}")
