#!/usr/bin/env python3
"""What `tidepool k8s` prints: checked by the models of JobSet and Kubernetes with unknown keys rejected, and its containers
run on this machine with folders for volumes.

    tests/interop/job_set.py --build BUILD_FOLDER      in an environment of k8s_requirements.txt
"""
import argparse
import copy
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing
import unittest

import kubernetes_validate
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from pydantic import BaseModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIDEPOOL = None
CONFIG = "configs/test/rl_split.yaml"


def manifest(*options, config=CONFIG, code=0, cwd=ROOT):
    done = subprocess.run([TIDEPOOL, "k8s", config, *options], cwd=cwd, text=True, capture_output=True, timeout=60)
    if done.returncode != code:
        raise AssertionError(f"exit code {done.returncode}, expected {code}\n{done.stderr}")
    return list(yaml.safe_load_all(done.stdout)) if code == 0 else done.stderr


def unknown_keys(model, value, where):
    """pydantic's models take keys that they do not know: those, by their paths."""
    if isinstance(value, dict):
        known = {field.alias or name: field for name, field in model.model_fields.items()}
        for key, item in value.items():
            if key not in known:
                yield f"{where}.{key}"
            else:
                yield from of_type(known[key].annotation, item, f"{where}.{key}")


def of_type(annotation, value, where):
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict:
        for key, item in value.items():
            yield from of_type(parts[1], item, f"{where}.{key}")
    elif origin is list:
        for number, item in enumerate(value):
            yield from of_type(parts[0], item, f"{where}[{number}]")
    elif parts:  # Optional and the like
        for part in parts:
            yield from of_type(part, value, where)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and "actual_instance" not in annotation.model_fields:  # a text or a number
        yield from unknown_keys(annotation, value, where)


def check_job_set(job_set):
    unknown = sorted(set(unknown_keys(JobsetV1alpha2JobSet, job_set, "JobSet")))
    if unknown:
        raise ValueError("unknown keys: " + ", ".join(unknown))
    JobsetV1alpha2JobSet.from_dict(copy.deepcopy(job_set))
    for job in job_set["spec"]["replicatedJobs"]:
        check_object({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job["template"]["spec"]})
        check_object({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": job["template"]["spec"]["template"]["spec"]})


def check_object(thing):
    kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)


class JobSetTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="tidepool-job-set-"))
        self.addCleanup(shutil.rmtree, self.dir)

    def test_all_that_is_printed_is_what_kubernetes_knows(self):
        for options in ((), ("--certificates", "cert-manager"), ("--certificates", "secret"),
                        ("--queue", "teams", "--memory", "64Gi", "--namespace", "research", "--storage-class", "fast", "--slots", "2"),
                        ("--claim", "shared", "cluster.device=cuda")):
            with self.subTest(options):
                things = manifest("-N", "3", "--image", "registry/tidepool:1", *options)
                self.assertEqual(things[-1]["kind"], "JobSet")
                check_job_set(things[-1])
                for thing in things[:-1]:
                    if thing["apiVersion"].startswith("cert-manager.io/"):
                        self.assertIn(thing["kind"], ("Issuer", "Certificate"))
                    else:
                        check_object(thing)

    def test_the_checks_see_a_misspelt_key(self):
        (*_, job_set) = manifest("-N", "2", "--image", "x")
        for path in (("spec", "succesPolicy"), ("spec", "network", "subDomain"), ("spec", "replicatedJobs", 0, "replica"),
                     ("spec", "replicatedJobs", 1, "template", "spec", "backoff"),
                     ("spec", "replicatedJobs", 1, "template", "spec", "template", "spec", "containers", 0, "livenesProbe")):
            wrong = copy.deepcopy(job_set)
            at = wrong
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = {}
            with self.subTest(path), self.assertRaisesRegex(ValueError, f"unknown keys: JobSet.*{path[-1]}"):
                check_job_set(wrong)

    def test_pods_have_little_and_are_restarted_one_by_one(self):
        things = manifest("-N", "3", "--slots", "2", "--image", "registry/tidepool:1", "--queue", "teams", "cluster.threads_per_slot=4", "cluster.device=cuda")
        (*_, job_set) = things
        self.assertEqual(job_set["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "teams")
        self.assertEqual(job_set["spec"]["failurePolicy"], {"maxRestarts": 0})
        self.assertEqual(job_set["spec"]["successPolicy"]["targetReplicatedJobs"], ["controller"])
        jobs = {job["name"]: job["template"]["spec"] for job in job_set["spec"]["replicatedJobs"]}
        self.assertEqual((jobs["controller"]["completions"], jobs["host"]["completions"], jobs["host"]["completionMode"]), (1, 3, "Indexed"))
        for job in jobs.values():
            pod = job["template"]["spec"]
            (container,) = pod["containers"]
            self.assertIs(pod["automountServiceAccountToken"], False)
            self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
            self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}})
            self.assertIn("livenessProbe", container)
        self.assertEqual(jobs["host"]["template"]["spec"]["containers"][0]["resources"], {"requests": {"cpu": "8"}, "limits": {"nvidia.com/gpu": "2"}})
        self.assertIn("cluster.slots=6", jobs["controller"]["template"]["spec"]["containers"][0]["args"])

    def test_a_config_comes_with_all_that_it_names(self):
        things = manifest("-N", "2", "--image", "x", config="configs/quickstart.yaml")
        files = things[0]["data"]
        self.assertEqual(sorted(files), ["quickstart.yaml", "quickstart_sft.yaml"])
        for name, text in files.items():
            self.assertEqual(text, (ROOT / "configs" / name).read_text())

    def test_what_kubernetes_would_refuse_is_refused_with_a_remedy(self):
        for options, words in ((("--image", "a b"), ("--image", "registry/tidepool:1")), (("--image", "x", "--memory", "lots"), ("--memory", "64Gi")),
                               (("--image", "x", "--name", "Upper_Case"), ("--name", "small letters")),
                               (("--image", "x", "--name", "a" * 39), ("--name", "38")), (("--image", "x", "train.stepz=1"), ("train.stepz", "train.steps"))):
            said = manifest("-N", "2", *options, code=2)
            for word in words:
                self.assertIn(word, said)

    # --- run ---

    def start(self, container, index):
        """A container of the manifest on this machine: folders of this test are its volumes."""
        places = {"/data": self.dir / "data", "/config": self.dir / "config", "/certificates": self.dir / "certificates", "/tmp/beat": self.dir / f"beat{index}"}

        def here(text):
            for place, folder in places.items():
                text = text.replace(place, str(folder))
            return text.replace("cluster.advertise=job-controller-0-0.job", "cluster.advertise=127.0.0.1")
        return subprocess.Popen([*container["command"], *map(here, container["args"])], cwd=here(container["workingDir"]), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                env={"PATH": f"{pathlib.Path(TIDEPOOL).parent}:/usr/bin:/bin", "HOME": str(self.dir), "JOB_COMPLETION_INDEX": str(index)})

    def run_as_pods(self, *options):
        things = manifest("-N", "2", "--image", "x", "--name", "job", "train.steps=12", "checkpoint.every_steps=1", *options)
        for thing in things:
            if thing["kind"] == "ConfigMap":
                for name, text in thing["data"].items():
                    (self.dir / "config" / name).parent.mkdir(exist_ok=True)
                    (self.dir / "config" / name).write_text(text)
            if thing["kind"] == "Secret":
                (self.dir / "certificates").mkdir()
                for name, text in thing["stringData"].items():
                    (self.dir / "certificates" / name).write_text(text)
        (self.dir / "data").mkdir()
        controller, host = (job["template"]["spec"]["template"]["spec"]["containers"][0] for job in things[-1]["spec"]["replicatedJobs"])
        run = self.dir / "data/runs/job"

        def ended(process, seconds=120):
            out, err = process.communicate(timeout=seconds)
            return process.returncode, out + err

        def healthy():
            return subprocess.run([TIDEPOOL, *controller["livenessProbe"]["exec"]["command"][1:2], str(run), "--healthy"], capture_output=True, timeout=30).returncode

        hosts = [self.start(host, index) for index in (0, 1)]
        first = self.start(controller, 0)
        try:
            deadline = time.monotonic() + 120
            while not (run / "status.json").exists() or json.loads((run / "status.json").read_text() or "{}").get("step", 0) < 2:
                self.assertLess(time.monotonic(), deadline, "no second step")
                self.assertIsNone(first.poll(), first.poll() is not None and ended(first))
                time.sleep(0.1)
            self.assertEqual(healthy(), 0)
            for index in (0, 1):
                self.assertTrue((self.dir / f"beat{index}").exists())
            first.send_signal(signal.SIGTERM)  # the node is drained
            self.assertEqual(ended(first)[0], 75)
            self.assertEqual(healthy(), 3)
            hosts[1].send_signal(signal.SIGTERM)
            self.assertEqual(ended(hosts[1])[0], 75)
            hosts[1] = self.start(host, 1)
            code, said = ended(self.start(controller, 0))
            self.assertEqual(code, 0, said)
            self.assertEqual(healthy(), 0)
            for process in hosts:
                code, said = ended(process)
                self.assertEqual(code, 0, said)
        finally:
            for process in (first, *hosts):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
        self.assertEqual(json.loads((run / "summary.json").read_text())["steps"], 12)
        return run

    def test_the_pods_run_a_job_and_go_on_where_they_were_told_to_end(self):
        self.run_as_pods()

    def test_certificates_of_a_secret_are_those_of_the_run(self):
        run = self.run_as_pods("--certificates", "secret")
        for name in ("authority.crt", "device.key"):
            self.assertEqual((run / "security" / name).read_text(), (self.dir / "certificates" / name).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    arguments, rest = parser.parse_known_args()
    TIDEPOOL = str(pathlib.Path(arguments.build).resolve() / "bin/tidepool")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
