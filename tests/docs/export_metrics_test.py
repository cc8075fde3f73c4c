"""scripts/export_metrics, with stand-ins for wandb and mlflow that write down what they are told.

    export_metrics_test.py [BUILD_FOLDER]     with BUILD_FOLDER a config of the real program is read too
    export_metrics_test.py --real             the packages themselves, offline, of the Python that runs this (scripts/interop)"""
import contextlib
import fcntl
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "export_metrics"
BUILD = None

WANDB = '''
import json, os, time
def told(*what):
    with open(os.environ["TOLD"], "a") as out: out.write(json.dumps(what) + "\\n")
class Config:
    def update(self, values, allow_val_change=False): told("config", values)
class Summary:
    def __setitem__(self, key, value): told("summary", key, value)
class Run:
    def __init__(self, ident): self.id, self.config, self.summary = ident, Config(), Summary()
    def define_metric(self, name, step_metric=None): pass
    def log(self, row):
        told("log", row)
        while os.environ.get("HANG"): time.sleep(1)
    def finish(self, exit_code=None): told("finish", exit_code)
def init(**options):
    told("init", options)
    return Run(options["id"])
'''
MLFLOW = '''
import json, os, types
def told(*what):
    with open(os.environ["TOLD"], "a") as out: out.write(json.dumps(what) + "\\n")
class MlflowClient:
    def get_experiment_by_name(self, name): return None
    def create_experiment(self, name): told("experiment", name); return "7"
    def create_run(self, experiment, start_time, run_name):
        told("run", run_name)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))
    def update_run(self, ident, status): told("again", ident)
    def get_run(self, ident):
        had = json.loads(os.environ.get("HAD", "{}"))
        return types.SimpleNamespace(data=types.SimpleNamespace(params=had))
    def log_batch(self, ident, metrics=(), params=(), tags=()):
        told("batch", [list(m) for m in metrics], [list(p) for p in params], [list(t) for t in tags])
    def set_terminated(self, ident, status): told("terminated", status)
'''
ENTITIES = '''
def Metric(key, value, timestamp, step): return (key, value, timestamp, step)
def Param(key, value): return (key, value)
def RunTag(key, value): return (key, value)
'''

CONFIG = '''# Every value of this job and where it came from.
name: mine                                # x.yaml:1
train:
  steps: 5                                # override
  learning_rate: 1.0e-05                  # x.yaml:3
data:
  length: [2,3]                           # x.yaml:4
  path: "a # b.jsonl"                     # x.yaml:4
  # style: "terse"                        # default
reward:
  functions:                              # x.yaml:5
    - name: exact_answer                  # x.yaml:6
      weight: 1                           # default
    - name: "format:[ab]"                 # x.yaml:7
algorithm:
  kl:
    target: null                          # default
'''
SUMMARY = {"exit": 0, "why": "all steps done", "held_out": {"last": {"value": 0.5}}}


def line(step, wall_s=None, **metrics):
    return json.dumps({"step": step, "version": step, "lineage": 0, "wall_s": wall_s if wall_s is not None else float(step),
                       "metrics": {k.replace("__", "/"): v for k, v in metrics.items()}}) + "\n"


class ExportTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="tidepool-export-"))
        self.run_dir = self.dir / "mine-20260301T000000Z"
        self.run_dir.mkdir()
        (self.run_dir / "config.yaml").write_text(CONFIG)
        for name, text in {"wandb/__init__.py": WANDB, "mlflow/__init__.py": MLFLOW, "mlflow/entities.py": ENTITIES}.items():
            path = self.dir / "modules" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.told_file = self.dir / "told.jsonl"

    def tearDown(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def write(self, *lines, summary=True):
        (self.run_dir / "metrics.jsonl").write_text("".join(lines))
        if summary:
            (self.run_dir / "summary.json").write_text(json.dumps(SUMMARY))

    def environment(self, **more):
        return {**os.environ, "PYTHONPATH": str(self.dir / "modules"), "TOLD": str(self.told_file), **more}

    def export(self, *args, code=0, **more):
        done = subprocess.run([sys.executable, str(SCRIPT), str(self.run_dir), *args], capture_output=True, text=True, timeout=60,
                              env=self.environment(**more))
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def told(self, kind):
        """What was told since the last look."""
        all_of = [json.loads(t) for t in self.told_file.read_text().splitlines()] if self.told_file.exists() else []
        return [t[1:] for t in all_of if t[0] == kind]

    def forget(self):
        self.told_file.unlink(missing_ok=True)

    # An evaluation comes after the next step; steps 2 and 3 were undone and trained again; a number is not finite; half a line.
    LINES = [line(0, eval__accuracy=0.25), line(1, loss=1.0), line(2, loss=0.9), line(1, eval__accuracy=0.5, eval__accuracy__low=0.4), line(3, loss=0.8),
             line(2, wall_s=9, loss=0.7, ratio=None), line(3, wall_s=10, loss=0.6), '{"step": 4, "metr']

    def test_afterwards_a_step_is_what_its_last_life_was(self):
        self.write(*self.LINES)
        said = self.export("--to", "wandb", "--project", "p")
        rows = [row for (row,) in self.told("log")]
        self.assertEqual(rows, [{"step": 0, "wall_s": 0, "eval/accuracy": 0.25}, {"step": 1, "wall_s": 1, "loss": 1.0, "eval/accuracy": 0.5, "eval/accuracy/low": 0.4},
                                {"step": 2, "wall_s": 9, "loss": 0.7}, {"step": 3, "wall_s": 10, "loss": 0.6}])
        self.assertNotIn("trained again", said)
        (config,) = self.told("config")[0]
        self.assertEqual(config, {"name": "mine", "train.steps": 5, "train.learning_rate": 1e-5, "data.length": [2, 3],
                                  "data.path": "a # b.jsonl", "reward.functions[0].name": "exact_answer", "reward.functions[0].weight": 1,
                                  "reward.functions[1].name": "format:[ab]"})
        self.assertEqual(self.told("summary"), [["summary/exit", 0], ["summary/why", "all steps done"], ["summary/held_out/last/value", 0.5]])
        self.assertEqual(self.told("init")[0][0]["project"], "p")

    def test_nothing_goes_out_twice_and_what_is_new_does(self):
        self.write(*self.LINES)
        self.export("--to", "wandb")
        first = self.told("init")[0][0]["id"]
        self.forget()
        self.export("--to", "wandb")
        self.assertEqual(self.told("log") + self.told("summary"), [])
        self.assertEqual(self.told("init")[0][0]["id"], first)
        self.forget()
        self.write(*self.LINES[:-1], line(4, loss=0.5), line(3, eval__accuracy=0.75))
        self.export("--to", "wandb")
        self.assertEqual([row for (row,) in self.told("log")], [{"step": 3, "wall_s": 3, "eval/accuracy": 0.75}, {"step": 4, "wall_s": 4, "loss": 0.5}])
        self.forget()
        self.export("--to", "wandb", "--new")
        self.assertEqual(len(self.told("log")), 5)
        self.assertNotEqual(self.told("init")[0][0]["id"], first)
        self.write(line(0, loss=1.0))  # another run in its place
        self.assertIn("is shorter than what was exported", self.export("--to", "wandb", code=1))

    def journal(self, folder, content=b"x" * 40):
        (folder / "journal").mkdir(exist_ok=True)
        (folder / "journal" / "0000.tpj").write_bytes(struct.pack("<8sII", b"TPJRNL\r\n", 1, 16 + len(content)) + content)
        (folder / "journal" / "lock").touch()

    @contextlib.contextmanager
    def controller(self):
        """What a run has while a controller works on it."""
        self.journal(self.run_dir)
        (self.run_dir / "control.json").write_text(json.dumps({"pid": os.getpid()}))
        with open(self.run_dir / "journal" / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def follower(self, to="wandb", **more):
        process = subprocess.Popen([sys.executable, str(SCRIPT), str(self.run_dir), "--to", to, "--follow", "--every", "0.02"],
                                   stderr=subprocess.PIPE, text=True, env=self.environment(**more))
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def wait_for(self, count, kind="log"):
        end = time.monotonic() + 20
        while len(self.told(kind)) < count:
            self.assertLess(time.monotonic(), end, self.told_file.read_text() if self.told_file.exists() else "nothing")
            time.sleep(0.01)

    def test_follows_a_run_that_goes_back(self):
        metrics = self.run_dir / "metrics.jsonl"
        with self.follower() as follower:
            with self.controller():
                for at, text in enumerate([line(1, loss=1.0), line(2, loss=0.9), line(2, loss=0.7, eval__accuracy=0.5), line(3, loss=0.6)]):
                    with open(metrics, "a") as out:
                        out.write(text)
                    self.wait_for(at + 1)
                (self.run_dir / "summary.json").write_text(json.dumps(SUMMARY))
            # Its control.json stays, as after a kill, and names a process that lives.
            said = follower.communicate(timeout=20)[1]
        self.assertEqual(follower.returncode, 0, said)
        rows = [row for (row,) in self.told("log")]
        self.assertEqual([(r["step"], r.get("loss"), r.get("eval/accuracy")) for r in rows],
                         [(1, 1.0, None), (2, 0.9, None), (2, None, 0.5), (3, 0.6, None)])
        self.assertIn("steps 2 were trained again", said)
        self.assertIn("--new", said)
        self.assertEqual(self.told("finish"), [[0]])

    def test_another_run_in_the_same_folder_is_not_followed(self):
        self.write(line(1, loss=1.0), line(2, loss=0.9), summary=False)
        with self.controller(), self.follower() as follower:
            self.wait_for(2)
            first = self.told("init")[0][0]["id"]
            aside = self.dir / "mine.old"
            self.run_dir.rename(aside)  # as --fresh does
            self.run_dir.mkdir()
            (self.run_dir / "config.yaml").write_text(CONFIG)
            self.write(*[line(step, loss=0.1) for step in range(1, 6)], summary=False)
            said = follower.communicate(timeout=20)[1]
        self.assertEqual(follower.returncode, 0, said)
        self.assertIn("another run has this name now", said)
        self.assertEqual(len(self.told("log")), 2)
        self.assertFalse((self.run_dir / "exports.json").exists())
        self.assertEqual(json.loads((aside / "exports.json").read_text())["wandb"]["/tidepool"]["id"], first)
        self.export("--to", "wandb")
        self.assertEqual(len(self.told("log")), 7)
        self.assertNotEqual(self.told("init")[-1][0]["id"], first)

    def test_a_copy_is_another_run_there_and_a_run_that_was_moved_is_the_same(self):
        self.journal(self.run_dir)
        self.write(*self.LINES)
        self.export("--to", "wandb")
        first, self.run_dir = self.run_dir, self.dir / "moved-20260301T000000Z"
        first.rename(self.run_dir)
        self.export("--to", "wandb")
        shutil.copytree(self.run_dir, self.dir / "copy")
        self.run_dir = self.dir / "copy"
        self.assertIn("is a copy", self.export("--to", "wandb"))
        self.journal(self.run_dir, b"y" * 40)
        self.assertIn("another run was exported", self.export("--to", "wandb"))
        idents = [init["id"] for (init,) in self.told("init")]
        self.assertEqual(idents[0], idents[1])
        self.assertEqual(len(set(idents)), 3)

    def test_two_services_at_once_keep_each_their_own_place(self):
        self.write(line(1, loss=1.0), summary=False)
        with self.controller(), self.follower("wandb") as wandb, self.follower("mlflow") as mlflow:
            self.wait_for(1)
            self.wait_for(1, "run")
            for step in range(2, 5):
                with open(self.run_dir / "metrics.jsonl", "a") as out:
                    out.write(line(step, loss=0.5))
                self.wait_for(step)
            for process in (wandb, mlflow):
                end = time.monotonic() + 20
                size = (self.run_dir / "metrics.jsonl").stat().st_size
                while [at["offset"] for of in json.loads((self.run_dir / "exports.json").read_text()).values() for at in of.values()] != [size] * 2:
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.01)
            for process in (wandb, mlflow):
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(timeout=20), 0)
        self.forget()
        for to in ("wandb", "mlflow"):
            self.assertIn("0 rows sent", self.export("--to", to))

    def test_only_what_is_new_is_read(self):
        self.write(line(1, loss=1.0), line(2, loss=0.9), summary=False)
        metrics = self.run_dir / "metrics.jsonl"
        with self.controller(), self.follower() as follower:
            self.wait_for(2)
            with open(metrics, "r+") as out:
                out.write("x" * 20)  # what was read before is not parsed again
                out.seek(0, os.SEEK_END)
                out.write(line(3, loss=0.8))
            self.wait_for(3)
            self.assertIsNone(follower.poll())

    def test_a_second_signal_ends_it_where_a_call_hangs(self):
        self.write(line(1, loss=1.0), summary=False)
        with self.controller(), self.follower(HANG="1") as follower:
            self.wait_for(1)
            end = time.monotonic() + 20
            while follower.poll() is None:
                self.assertLess(time.monotonic(), end)
                follower.send_signal(signal.SIGINT)
                time.sleep(0.05)
            self.assertEqual(follower.returncode, -signal.SIGINT)

    def test_mlflow_has_names_that_it_takes_and_keeps_its_run(self):
        self.write(*self.LINES)
        self.export("--to", "mlflow", "--project", "p")
        batches = self.told("batch")
        metrics = [m for b in batches for m in b[0]]
        self.assertEqual([(key, value, step) for key, value, _, step in metrics],
                         [("eval/accuracy", 0.25, 0), ("loss", 1.0, 1), ("eval/accuracy", 0.5, 1), ("eval/accuracy.low", 0.4, 1), ("loss", 0.7, 2), ("loss", 0.6, 3)])
        self.assertEqual(metrics[-1][2], 1772323200000 + 10000, "the run's own time")
        params = dict(p for b in batches for p in b[1])
        self.assertEqual(params["train.steps"], "5")
        self.assertEqual(params["reward.functions_1_.name"], "format:[ab]")
        self.assertIn(["summary.why", "all steps done"], [t for b in batches for t in b[2]])
        self.assertEqual(self.told("terminated"), [["FINISHED"]])
        self.forget()
        self.write(*self.LINES[:-1], line(4, loss=0.5))
        self.export("--to", "mlflow", "--project", "p", HAD=json.dumps({**params, "train.steps": "3"}))
        self.assertEqual(self.told("again"), [["abc"]])
        self.assertEqual([m[3] for b in self.told("batch") for m in b[0]], [4])
        self.assertIn(["now.train.steps", "5"], [t for b in self.told("batch") for t in b[2]])

    def test_what_is_wrong_is_said(self):
        self.write(*self.LINES)
        shutil.rmtree(self.dir / "modules" / "wandb")
        if importlib.util.find_spec("wandb") is None:
            self.assertIn("pip install wandb", self.export("--to", "wandb", code=2))
        self.write(line(1, loss=1.0), "x\n")
        self.assertIn("metrics.jsonl:2: ", self.export("--to", "mlflow", code=1))
        self.run_dir = self.dir / "nothing"
        self.assertIn("no such run", self.export("--to", "mlflow", code=2))

    def test_reads_what_the_program_writes(self):
        if BUILD is None:
            self.skipTest("no BUILD_FOLDER")
        text = subprocess.run([str(BUILD / "bin" / "tidepool"), "config", "show", "configs/test/rl_colocated.yaml"], cwd=ROOT, capture_output=True,
                              text=True, timeout=60, check=True).stdout
        (self.run_dir / "config.yaml").write_text(text)
        loader = importlib.machinery.SourceFileLoader("export_metrics", str(SCRIPT))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("export_metrics", loader))
        sys.dont_write_bytecode = True
        loader.exec_module(module)
        config = module.read_config(self.run_dir / "config.yaml")
        self.assertEqual(config["reward.functions[1].name"], "format:[ab]")
        self.assertEqual(config["rollout.group_size"], 4)
        self.assertEqual(config["model.init.alphabet"], "abcdefghijklmnopqrstuvwxyz =")
        self.assertGreater(len(config), 120)


class RealTest(ExportTest):
    """The same run through the packages themselves, offline."""

    def environment(self, **more):
        return {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(self.dir), "MLFLOW_TRACKING_URI": f"file:{self.dir}/mlruns", **more}

    def test_wandb(self):
        self.write(*self.LINES)
        self.assertIn("4 rows sent to wandb", self.export("--to", "wandb"))
        self.assertIn("0 rows sent to wandb", self.export("--to", "wandb"))
        self.assertTrue(list(self.dir.glob("wandb/offline-run-*/run-*.wandb")))

    def test_mlflow(self):
        import mlflow
        self.write(*self.LINES)
        self.assertIn("4 rows sent to mlflow", self.export("--to", "mlflow", "--project", "p"))
        self.write(*self.LINES[:-1], line(4, loss=0.5))
        self.assertIn("1 rows sent to mlflow", self.export("--to", "mlflow", "--project", "p"))
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        client = mlflow.MlflowClient(tracking_uri=f"file:{self.dir}/mlruns")
        (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
        self.assertEqual([(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss")],
                         [(1, 1.0), (2, 0.7), (3, 0.6), (4, 0.5)])
        self.assertEqual(run.data.params["reward.functions_1_.name"], "format:[ab]")
        self.assertEqual(run.info.status, "FINISHED")


if __name__ == "__main__":
    real = "--real" in sys.argv
    folders = [a for a in sys.argv[1:] if not a.startswith("--")]
    BUILD = pathlib.Path(folders[0]).resolve() if folders else None
    suite = unittest.TestSuite()
    loader = unittest.defaultTestLoader
    if real:
        suite.addTests([RealTest("test_wandb"), RealTest("test_mlflow")])
    else:
        suite.addTests(loader.loadTestsFromTestCase(ExportTest))
    sys.exit(0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1)
