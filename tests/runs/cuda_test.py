"""Whole jobs on cluster.device: cuda, on emulated GPUs: programs of the build beside a stand-in for libtidepool_cuda.so
(tests/core/cuda/emulated_module.cc). What is refused, and why; RL and SFT from config to model; a run that was killed
goes on; what it leaves is of use on the CPU."""
import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import unittest
import unittest.mock

import experts_test
import harness
from harness import BIN, PATIENCE, ROOT, RunTest

EMULATED = pathlib.Path(os.environ.get("TIDEPOOL_EMULATED_CUDA", BIN.parent / "emulated_cuda"))
MODULE, DRIVER = EMULATED / "libtidepool_cuda.so", EMULATED / "libcuda.so.1"
RL, SFT = "configs/test/rl_colocated.yaml", "configs/test/sft.yaml"
# An emulated kernel takes milliseconds where the CPU's takes microseconds.
SMALL = ["cluster.device=cuda", "model.init.hidden_size=16", "model.init.intermediate_size=32", "model.init.layers=1",
         "data.size=8", "data.held_out=2", "eval.samples=2"]
SMALL_RL = [*SMALL, "rollout.group_size=2", "train.groups_per_step=2", "rollout.max_new_tokens=4"]
SMALL_SFT = [*SMALL, "train.groups_per_step=4"]


def link(file, folder):
    """A name of its own for the same file: programs look for the module where they themselves are."""
    try:
        os.link(file, folder / file.name)
    except OSError:
        shutil.copy2(file, folder / file.name)


class CudaTest(RunTest):
    MODULE = True

    @classmethod
    def setUpClass(cls):
        cls.bin = EMULATED / ("with_module" if cls.MODULE else "without_module")
        shutil.rmtree(cls.bin, ignore_errors=True)
        cls.bin.mkdir()
        for name in ["tidepool", "tidepool-worker"]:
            link(BIN / name, cls.bin)
        if cls.MODULE:
            link(MODULE, cls.bin)
        harness.TIDEPOOL = str(cls.bin / "tidepool")
        os.environ["LD_LIBRARY_PATH"] = str(EMULATED)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.bin, ignore_errors=True)

    def assert_refused(self, what, *overrides, config=RL, env=None):
        """`train` refuses before anything is made."""
        result = self.command("train", config, "--run-dir", str(self.dir / "refused"), "cluster.device=cuda",
                              *overrides, env=env)
        self.assert_done(result, 2)
        self.assertIn(what, result.stderr)
        self.assertFalse((self.dir / "refused").exists())


class RefusalTest(CudaTest):
    def test_a_machine_without_what_is_asked_for_is_told_what_is_missing(self):
        for what, overrides, env in [
                ("cluster.slots: is 2, and each slot of cluster.device: cuda is a GPU of its own, but the driver shows 1",
                 ["cluster.slots=2"], {}),
                ("cluster.device: GPU 0 (Emulated GPU): has compute capability 7.0, and the kernels need 8.0 or newer", [],
                 {"TIDEPOOL_EMULATED_CAPABILITY": "70"}),
                ("speaks interface 1, expected ", [], {"TIDEPOOL_EMULATED_ABI": "1"}),
                ("free for device-0, which needs about", [], {"TIDEPOOL_EMULATED_MEMORY": "100000"}),
                ("; lower rollout.kv_cache_tokens", ["rollout.kv_cache_tokens=8000000"], {}),
                ("cluster.device: the NVIDIA driver shows no GPU; CUDA 13 needs a driver of 580 or newer; check nvidia-smi", [], {"TIDEPOOL_EMULATED_GPUS": "0"}),
        ]:
            with self.subTest(what):
                self.assert_refused(what, *overrides, env=env)

    def test_a_machine_without_a_driver_is_told_so(self):
        try:
            ctypes.CDLL("libcuda.so.1")
            self.skipTest("this machine has a driver")
        except OSError:
            pass
        self.assert_refused("cluster.device: this machine has no NVIDIA driver", env={"LD_LIBRARY_PATH": ""})
        doctor = json.loads(self.command("doctor", "--json", env={"LD_LIBRARY_PATH": ""}).stdout)
        self.assertFalse(doctor["cuda"]["available"])
        self.assertIn("no NVIDIA driver", doctor["cuda"]["problem"])

    def test_sizes_that_the_kernels_do_not_have_are_refused_with_the_config(self):
        model = self.dir / "model"
        experts_test.write_model(model, vocab_rows=400000)
        config = self.dir / "large.yaml"
        config.write_text(experts_test.CONFIG.format(model=model))
        said = "the vocabulary (vocab_size) is 400000, and the CUDA kernels have it up to 327680; use cluster.device: cpu, or another model"
        for command in [["validate", str(config)], ["train", str(config), "--run-dir", str(self.dir / "refused")]]:
            result = self.command(*command, "cluster.device=cuda")
            self.assert_done(result, 2)
            self.assertIn(f"{config}:6: model.path: {said}", result.stderr)
        asked = self.command("generate", str(model), "--prompt", "ab=", "--device", "cuda")
        self.assert_done(asked, 2)
        self.assertIn(f"--model: {said}", asked.stderr)

    def test_a_gpu_without_room_to_train_generates(self):
        model = self.dir / "model"
        experts_test.write_model(model)
        ask = ["generate", str(model), "--prompt", "ab=", "--max-new-tokens", "2", "--device", "cuda"]
        self.assert_done(self.command(*ask, env={"TIDEPOOL_EMULATED_MEMORY": "150000000"}))
        refused = self.command(*ask, env={"TIDEPOOL_EMULATED_MEMORY": "100000"})
        self.assert_done(refused, 2)
        self.assertRegex(refused.stderr, "^--device: GPU 0 .* free for device-0, which needs about .*engine workspace")
        self.assertNotIn("optimizer", refused.stderr)

    def test_doctor_shows_the_gpus(self):
        doctor = json.loads(self.command("doctor", "--json", env={"TIDEPOOL_EMULATED_GPUS": "2"}).stdout)
        self.assertTrue(doctor["cuda"]["available"])
        self.assertIn("Emulated GPU, 1.0 GiB of 1.0 GiB free", doctor["cuda"]["GPU 1"])
        doctor = json.loads(self.command("doctor", "--json", env={"TIDEPOOL_EMULATED_CAPABILITY": "75"}).stdout)
        self.assertFalse(doctor["cuda"]["available"])
        self.assertTrue([f for f in doctor["findings"] if "compute capability 7.5" in f["what"] and not f["blocks"]])


class NoModuleTest(CudaTest):
    MODULE = False

    def test_a_build_without_the_module_is_told_so(self):
        missing = "libtidepool_cuda.so: no such module; build it on a machine with nvcc"
        self.assert_refused(missing)
        # A config may be meant for another machine.
        for command in [["train", RL, "--dry-run"], ["validate", RL]]:
            result = self.command(*command, "cluster.device=cuda")
            self.assert_done(result)
            self.assertRegex(result.stderr, f"warning: this run would be refused: .*{missing}")


class JobTest(CudaTest):
    def test_an_rl_job_is_killed_goes_on_and_its_model_is_of_use_on_the_cpu(self):
        job = [*SMALL_RL, "checkpoint.every_steps=1"]
        process = self.start(RL, *job, "train.steps=3")
        self.wait_step(1, process)
        self.kill_controller(process)
        self.assert_done(self.train(RL, *job, "train.steps=3", "--resume"))
        self.assert_checked()
        self.assertEqual(self.summary()["steps"], 3)
        self.assertEqual(len(set(self.digests().values())), 3, "a step left the weights as they were")
        said = {device: self.command("generate", str(self.path("final")), "--prompt", "ab=", "--max-new-tokens", "4",
                                     "--device", device) for device in ["cpu", "cuda"]}
        for result in said.values():
            self.assert_done(result)
        self.assertEqual(said["cpu"].stdout, said["cuda"].stdout)
        # The run itself goes on on the CPU, from its checkpoint.
        self.assert_done(self.train(RL, *job, "train.steps=4", "--resume", "cluster.device=cpu"))
        self.assertEqual(self.summary()["steps"], 4)

    def test_graphs_change_nothing_but_launches(self):
        # Two samples at a time: rows are not filled up, so products of LibTorch are the same.
        job = [*SMALL_RL, "train.steps=2", "rollout.max_concurrent=2", "observe.log_level=debug"]
        for run, extra in [("run", []), ("without", ["rollout.cuda_graphs=false"])]:
            self.assert_done(self.train(RL, *job, *extra, run=run))
        self.assertEqual(self.digests(), self.digests("without"))
        recorded = ["event=graph" in self.path("logs", "device-0.log", run=run).read_text() for run in ["run", "without"]]
        self.assertEqual(recorded, [True, False])

    def test_an_sft_job_gives_the_losses_of_the_cpu(self):
        for run, device in [("gpu", "cuda"), ("cpu", "cpu")]:
            self.assert_done(self.train(SFT, *SMALL_SFT, "train.steps=3", f"cluster.device={device}", run=run))
        for step in range(1, 4):
            gpu, cpu = (self.metrics(run)[step]["sft/loss"] for run in ["gpu", "cpu"])
            self.assertAlmostEqual(gpu, cpu, places=4)

    def test_a_worker_that_dies_is_replaced_on_its_gpu_from_the_recovery_copy(self):
        process = self.start(RL, *SMALL_RL, "train.steps=5", "checkpoint.every_steps=0", "checkpoint.recovery_every_steps=1")
        self.wait_step(2, process)
        harness.kill(self.worker_pid(0, process))
        self.finish(process)
        self.assert_checked()
        self.assertEqual(self.summary()["steps"], 5)

    def test_roles_that_do_not_fit_beside_each_other_take_turns_in_the_gpus_memory(self):
        with unittest.mock.patch.dict(os.environ, TIDEPOOL_EMULATED_MEMORY="130000000"):
            refused = self.train(RL, *SMALL_RL, "train.steps=2")
            self.assert_done(refused, 2)
            self.assertIn("free for device-0, which needs about", refused.stderr)
            self.assert_done(self.train(RL, *SMALL_RL, "train.steps=2", "train.offload_optimizer=disk"))
        self.assertEqual(self.summary()["steps"], 2)
        self.assertNotIn("event=memory_kept", self.path("logs", "device-0.log").read_text())

    def test_a_gpu_without_memory_in_mid_run_ends_its_worker_and_is_named(self):
        # It generates without memory; it generates and trains without.
        for gives, config, job in [("1000000", RL, SMALL_RL), ("34000000", SFT, SMALL_SFT)]:
            with self.subTest(gives), unittest.mock.patch.dict(os.environ, TIDEPOOL_EMULATED_GIVES=gives):
                process = self.start(config, *job, "train.steps=2", run=gives)
                controller = self.path("logs", "controller.log", run=gives)
                self.wait_for(lambda: controller.exists() and "event=worker_lost" in controller.read_text(), "the loss", process)
                self.kill_controller(process, run=gives)
                [fault, *_] = [r for r in self.journal(gives) if r["kind"] == "FAULT"]
                self.assertRegex(fault["what"], r"exit status 3: out of memory: cannot allocate \d+ bytes on emulated cuda, where \d+ are "
                                                "free; planned are .*; lower ")
                self.assertIn("event=end exit=3", self.path("logs", "device-0.log", run=gives).read_text())

    def test_a_deterministic_job_trains_on_what_it_sampled_to_the_bit(self):
        for run in ["one", "two"]:
            self.assert_done(self.train("configs/test/deterministic.yaml", *SMALL_RL, "train.steps=2", "model.dtype=bfloat16",
                                        run=run))
        for step in [1, 2]:
            self.assertEqual(self.metrics("one")[step]["training/rollout_logp_diff/max"], 0)
        self.assertEqual(self.digests("one"), self.digests("two"))

    def test_weights_reach_a_gpu_that_only_generates(self):
        for transport in ["shared_memory", "stream"]:
            with self.subTest(transport), unittest.mock.patch.dict(os.environ, TIDEPOOL_EMULATED_GPUS="2"):
                self.assert_done(self.train("configs/test/rl_split.yaml", *SMALL_RL, "train.steps=2",
                                            f"cluster.weight_transport={transport}", run=transport))
                self.assertEqual(self.summary(transport)["steps"], 2)
                self.assertIn("event=gpu name=\"emulated cuda\"", self.path("logs", "device-1.log", run=transport).read_text())

    def host(self, *args):
        process = subprocess.Popen([harness.TIDEPOOL, "host", str(self.path()), *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def test_the_slots_of_every_host_begin_with_its_first_gpu(self):
        with unittest.mock.patch.dict(os.environ, TIDEPOOL_EMULATED_GPUS="1"):
            run = self.start("configs/test/rl_split.yaml", *SMALL_RL, "train.steps=2", "cluster.launch_workers=false")
            self.wait_for(lambda: self.path("control.json").exists(), what="control.json", process=run)
            _, err = self.finish(self.host("--slots", "2"), 2)
            self.assertRegex(err, r"--slots: is 2, and each slot of cluster.device: cuda is a GPU of its own, but the driver shows 1 on host \S+; lower it")
            self.assertFalse(self.path("logs", "device-0.log").exists(), "a worker was started")
            hosts = [self.host("--slots", "1", "--index", str(i)) for i in (0, 1)]
            self.finish(run)
            for host in hosts:
                self.finish(host)
        self.assertEqual(self.summary()["steps"], 2)
        for i in (0, 1):
            self.assertIn("event=gpu name=\"emulated cuda\"", self.path("logs", f"device-{i}.log").read_text())

    def test_a_worker_that_is_started_by_hand_takes_the_gpu_that_it_is_told(self):
        run = self.start(SFT, *SMALL_SFT, "train.steps=1", "cluster.launch_workers=false")
        control = self.wait_for(lambda: self.path("control.json").exists() and json.loads(self.path("control.json").read_text()), what="control.json", process=run)
        worker = subprocess.run([str(self.bin / "tidepool-worker"), "run", "--connect", control["address"], "--run-id", control["run_id"], "--token-file",
                                 str(self.path("security", "device.token")), "--gpu", "1"], capture_output=True, text=True, timeout=PATIENCE)
        self.assertIn("this worker is for GPU 1, and the driver shows 1 on host ", worker.stdout + worker.stderr)
        self.kill_controller(run)

    def test_slots_that_train_together_add_up_gradients_where_they_are(self):
        self.assert_done(self.train(SFT, *SMALL_SFT, "train.steps=2", "cluster.device=cpu", run="cpu"))
        for zero in ["0", "2"]:  # 2: part by part
            with self.subTest(zero=zero):
                with unittest.mock.patch.dict(os.environ, TIDEPOOL_EMULATED_GPUS="2"):
                    self.assert_done(self.train(SFT, *SMALL_SFT, "train.steps=2", "cluster.slots=2", "cluster.threads_per_slot=1", f"train.zero={zero}", run=zero))
                logs = "".join(log.read_text() for log in self.path("logs", run=zero).iterdir())
                self.assertIn("emulated all_reduce of ", logs)
                for step in [1, 2]:
                    gpus, cpu = (self.metrics(run)[step]["sft/loss"] for run in [zero, "cpu"])
                    self.assertAlmostEqual(gpus, cpu, places=4)


class PackageTest(CudaTest):
    def gpu_jobs(self, *args, **env):
        return subprocess.run([str(self.dir / "cuda-run" / "gpu-jobs"), *args], cwd=self.dir, capture_output=True, text=True,
                              timeout=PATIENCE, env={**os.environ, "TIDEPOOL_LIBTORCH": str(ROOT / ".deps" / "libtorch" / "torch"), **env})

    def test_a_library_that_is_not_found_is_named_and_nothing_is_packed_without_it(self):
        ldd = self.dir / "ldd"
        ldd.write_text("#!/bin/sh\nprintf '\\tlibcuda.so.1 => not found\\n\\tlibc.so.6 => /lib/libc.so.6 (0x1)\\n\\tlibgrpc.so.99 => not found\\n'\n")
        ldd.chmod(0o755)
        package = self.dir / "package.tar.gz"
        packed = subprocess.run([str(ROOT / "scripts" / "cuda-run"), str(BIN.parent), str(package)], capture_output=True, text=True,
                                env={**os.environ, "MODULE": str(MODULE), "PATH": f"{self.dir}:{os.environ['PATH']}"})
        self.assertEqual(packed.returncode, 1, packed.stderr)
        self.assertIn("cuda-run: libgrpc.so.99 is needed", packed.stderr)
        self.assertNotIn("libcuda", packed.stderr)
        self.assertFalse(package.exists())

    def test_a_job_that_makes_no_step_in_its_time_is_a_failure(self):
        programs = self.dir / "bin"
        programs.mkdir()
        (programs / "tidepool").write_text('#!/bin/sh\ncase $1 in\n  doctor) echo \'{"cuda": {"available": true, "GPU 0": "None"}}\' ;;\n'
                                           '  train) mkdir -p "$4" && exec sleep 20 ;;\n  check) echo good ;;\nesac\n')
        (programs / "tidepool").chmod(0o755)
        ran = subprocess.run([str(ROOT / "scripts" / "gpu-jobs"), "run"], capture_output=True, text=True, timeout=PATIENCE,
                             env={**os.environ, "TIDEPOOL_BUILD_DIR": str(self.dir), "RESULTS": str(self.dir / "results"), "JOB_SECONDS": "1"})
        self.assert_done(ran, 1)
        self.assertIn("gpu-jobs: quickstart made no step; JOB_SECONDS is what a job may take", ran.stderr)
        self.assertNotIn("smollm2_shape", ran.stdout)

    def test_what_is_packed_for_another_machine_runs_jobs_and_benchmarks_there(self):
        package = self.dir / "package.tar.gz"
        packed = subprocess.run([str(ROOT / "scripts" / "cuda-run"), str(BIN.parent), str(package)], capture_output=True, text=True,
                                env={**os.environ, "MODULE": str(MODULE)})
        self.assert_done(packed)
        self.assertRegex(packed.stdout, r"package.tar.gz: \d+ MB\n.*\n  tar xzf package.tar.gz && cuda-run/gpu-jobs run")
        subprocess.run(["tar", "xzf", str(package), "-C", str(self.dir)], check=True)
        tiny = [*SMALL_RL[1:], "train.steps=1", "model.init.heads=2", "model.init.kv_heads=1", "model.init.head_size=16",
                "model.init.warm_start=''"]
        ran = self.gpu_jobs("run", *tiny)
        self.assert_done(ran)
        self.assertIn("on Emulated GPU", ran.stdout)
        self.assertEqual(ran.stdout.count("1 steps, median"), 3, ran.stdout)
        measured = self.gpu_jobs("bench", "tiny")
        self.assert_done(measured)
        cases = [json.loads(line) for line in measured.stdout.splitlines() if line.startswith("{")]
        self.assertEqual({case["machine"] for case in cases}, {"Emulated GPU"})
        self.assertLessEqual({"decode_tokens_per_s", "read_share", "step", "step_tflops"}, {case["case"] for case in cases})
        parts = self.gpu_jobs("parts", "tiny")
        self.assert_done(parts)
        self.assertRegex(parts.stdout, r"parts of a step that decodes 2 rows: \d+ calls")
        self.assertRegex(parts.stdout, r"1 graph recorded: ")
        self.assertRegex(parts.stdout, r"parts of a training step: \d+ calls[^=]*AdamW")
        skipped = self.gpu_jobs("bench", TIDEPOOL_EMULATED_GPUS="0")
        self.assert_done(skipped)
        self.assertIn("gpu-jobs: SKIPPED, the NVIDIA driver shows no GPU", skipped.stderr)


if __name__ == "__main__":
    unittest.main()
