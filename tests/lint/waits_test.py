#!/usr/bin/env python3
"""The lint of waits finds what it is for: each rule with a wait that has no end and the same one with an end."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import waits  # noqa: E402

# rule, without an end, with one ("" : only a remark helps)
PLANTED = [
    ("wait", "wake.wait(lock, [&] { return done; });", "wake.wait_for(lock, patience, [&] { return done; });"),
    ("wait", "work->wait();", "work->wait_until(end);"),
    ("Wait", "server->Wait();", ""),
    ("join", "thread.join();", ""),
    ("thread", "std::jthread writer_;", ""),
    ("thread", "std::thread writer([&] { Run(); });", ""),
    ("thread", "std::vector<std::jthread> threads_;", ""),
    ("future", "std::future<int> later = Ask();", ""),
    ("future", "auto later = std::async(Ask);", ""),
    ("waitpid", "waitpid(pid, &status, 0);", "waitpid(pid, &status, WNOHANG);"),
    ("waitpid", "::waitpid(pid,\n    &status,\n    0);", "::waitpid(pid,\n    &status,\n    WNOHANG);"),
    ("poll", "poll(&p, 1, -1);", "poll(&p, 1, left_ms);"),
    ("poll", "epoll_wait(fd, events, 8, -1);", "epoll_wait(fd, events, 8, 100);"),
    ("poll", "const int n = poll(&p, 1,\n                   -1);", "const int n = poll(&p, 1,\n                   100);"),
    ("select", "select(n, &set, nullptr, nullptr, nullptr);", "at::select(x, 0, 1);"),
    ("select", "::select(n, &set, nullptr, nullptr, nullptr);", "at::index_select(x, 0, index);"),
    ("lock file", "flock(fd, LOCK_EX);", "flock(fd, LOCK_EX | LOCK_NB);"),
    ("lock file", "fcntl(fd, F_SETLKW, &l);", "fcntl(fd, F_SETLK, &l);"),
    ("socket", "const int fd = accept(server, nullptr, nullptr);", ""),
    ("socket", "n = recv(fd, buffer, size, 0);", "n = recv(fd, buffer, size, MSG_DONTWAIT);"),
    ("pipe", "const ssize_t n = read(fd, buffer, size);", "const ssize_t n = pread(fd, buffer, size, 0);"),
    ("signal", "sigwait(&set, &signal);", "sigtimedwait(&set, &info, &time);"),
    ("program", "std::FILE* f = popen(command, mode);", ""),
    ("rpc", "grpc::ClientContext context;\nstub->Ask(&context, request, &reply);",
     "grpc::ClientContext context;\ncontext.set_deadline(end);\nstub->Ask(&context, request, &reply);"),
    ("rpc", "context = std::make_unique<grpc::ClientContext>();", ""),
    ("queue", "queue.Next(&tag, &ok);", "queue.AsyncNext(&tag, &ok, end);"),
    ("for ever", "channel->WaitForConnected(gpr_inf_future(GPR_CLOCK_REALTIME));", "channel->WaitForConnected(end);"),
    ("device", "cudaStreamSynchronize(stream);", "cudaStreamQuery(stream);"),
]


def rules(source):
    return {what.split(":")[0] for _, what in waits.findings(source)}


class WaitsTest(unittest.TestCase):
    def test_every_rule_finds_a_wait_without_an_end(self):
        for rule, endless, _ in PLANTED:
            with self.subTest(endless):
                self.assertEqual(rules("void F() {\n" + endless + "\n}\n"), {rule})
        self.assertEqual({p[0] for p in PLANTED}, {r[0] for r in waits.RULES}, "a rule without a planted wait")

    def test_a_wait_with_an_end_is_no_finding(self):
        for _, _, bounded in PLANTED:
            with self.subTest(bounded):
                self.assertEqual(waits.findings("void F() {\n" + bounded + "\n}\n"), [])

    def test_a_remark_beside_it_or_above_it_is_enough(self):
        for _, endless, _ in PLANTED:
            with self.subTest(endless):
                self.assertEqual(waits.findings("  // waits: what bounds it\n" + endless + "\n"), [])
        self.assertEqual(waits.findings("thread.join();  // waits: it was asked to stop\n"), [])

    def test_a_remark_without_a_reason_or_without_a_wait_is_a_finding(self):
        self.assertIn("no reason", waits.findings("thread.join();  // waits: ok\n")[0][1])
        self.assertEqual(rules("int x = 0;  // waits: what bounds it\n"), {"remark"})
        self.assertEqual(rules("// waits: what bounds it\n\nthread.join();\n"), {"remark", "join"})

    def test_comments_and_texts_are_not_code(self):
        self.assertEqual(waits.findings('// then thread.join(); ends it\nSay("thread.join();");\n/* server->Wait(); */\nchar c = \'"\';\n'), [])
        self.assertEqual(rules('Say("a // b"); thread.join();\n'), {"join"})

    def test_the_program_names_file_and_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.cc"
            path.write_text("int main() {\n  pause();\n}\n")
            program = [sys.executable, str(pathlib.Path(waits.__file__)), folder]
            run = subprocess.run(program, capture_output=True, text=True, timeout=30)
            self.assertEqual(run.returncode, 1)
            self.assertIn(f"{path}:2: signal", run.stdout)
            path.write_text("int main() {}\n")
            self.assertEqual(subprocess.run(program, capture_output=True, timeout=30).returncode, 0)
            path.unlink()
            self.assertEqual(subprocess.run(program, capture_output=True, timeout=30).returncode, 1, "nothing looked at is no pass")


if __name__ == "__main__":
    unittest.main()
