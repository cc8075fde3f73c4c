#!/usr/bin/env python3
"""From `tidepool new KIND NAME` to a plug-in that the tables have: new_plugin_test.py BUILD.

In a small tree of its own, with the build files of the kinds as they are in this one: each kind's file is written, found
by the build without an edit, compiled, listed, and passes the test that was written with it. So does the code of each guide,
pasted into such a file. The rest comes from the libraries that BUILD has.
"""
import os
import re
import shutil
import subprocess
import sys
import unittest

BUILD = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "build")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TIDEPOOL = os.path.join(BUILD, "bin", "tidepool")
PLACE = os.path.join(BUILD, "tests", "new_plugin")  # always the same, so that the compiler cache knows the files
# Names that the namespace of the kind has already.
NAMES = {"reward": "verdict", "task": "question", "environment": "text", "control": "rules", "algorithm": "loss", "model": "spec",
         "policy": "plan"}
KINDS = {"reward": "core/tasks/rewards", "task": "core/tasks/tasks", "environment": "core/environments/games",
         "control": "core/environments/control_tasks", "algorithm": "core/algorithms/losses", "model": "core/model/families",
         "policy": "scheduler/policies"}
LISTS = """
#include <cstdio>
#include "core/algorithms/registry.h"
#include "core/environments/text_game.h"
#include "core/environments/vector.h"
#include "core/model/families/family.h"
#include "core/tasks/reward.h"
#include "core/tasks/task.h"
#include "scheduler/policies/policy_plugin.h"
int main() {
  using namespace tidepool;
  for (const auto& e : tasks::ListRewards()) std::printf("reward %s\\n", e.name.c_str());
  for (const auto& e : tasks::ListTasks()) std::printf("task %s\\n", e.name.c_str());
  for (const auto& e : environments::ListTextEnvironments()) std::printf("environment %s\\n", e.name.c_str());
  for (const auto& e : environments::ListVectorEnvironments()) std::printf("control %s\\n", e.name.c_str());
  for (const auto& e : algorithms::Algorithms()) std::printf("algorithm %s\\n", e.name.c_str());
  for (const auto* e : model::Families()) std::printf("model %s\\n", e->model_type);
  for (const auto& e : scheduler::PolicyPlugins()) std::printf("policy %s\\n", e.name);
}
"""
# The libraries of the real build, after the objects of the small one: its tables come first.
LIBRARIES = ["core/environments/libtidepool_environments.a", "core/tasks/libtidepool_tasks.a",
             "core/algorithms/libtidepool_algorithms.a", "core/model/libtidepool_families.a", "core/device/libtidepool_kernel_plans.a",
             "core/files/libtidepool_files.a", "scheduler/libtidepool_scheduler.a", "core/base/libtidepool_base.a"]


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def plugin_calls(folder):
    with open(os.path.join(ROOT, folder, "CMakeLists.txt"), encoding="utf-8") as file:
        return re.findall(r"^tidepool_plugins\(.*?\)$", file.read(), re.S | re.M)


class NewPluginTest(unittest.TestCase):
    pasted = []

    @classmethod
    def setUpClass(cls):
        shutil.rmtree(PLACE, ignore_errors=True)
        top = ["cmake_minimum_required(VERSION 3.25)", "project(probe LANGUAGES CXX)", "set(CMAKE_CXX_STANDARD 20)",
               f"include_directories({ROOT} {PLACE})", "include(cmake/plugins.cmake)"]
        if shutil.which("ccache"):
            top.append(f"set(CMAKE_CXX_COMPILER_LAUNCHER {ROOT}/cmake/compiler_cache {PLACE})")
        objects = []
        for folder in sorted({os.path.dirname(place) for place in KINDS.values()}):
            calls = plugin_calls(folder)
            targets = sorted({re.search(r"TARGET (\w+)", call)[1] for call in calls})
            objects += [f"$<TARGET_OBJECTS:{target}>" for target in targets]
            write(os.path.join(PLACE, folder, "CMakeLists.txt"),
                  "\n".join([f"add_library({target} OBJECT)" for target in targets] + calls) + "\n")
            top.append(f"add_subdirectory({folder})")
        libraries = " ".join(os.path.join(BUILD, library) for library in LIBRARIES)
        top.append(f"add_executable(lists lists.cc {' '.join(objects)})")
        top.append(f"target_link_libraries(lists {libraries} pcre2-8 pthread)")
        top.append(f"add_executable(tests tests_of_templates.cc tests_of_guides.cc {' '.join(objects)})")
        top.append(f"target_link_libraries(tests {libraries} gtest_main gtest pcre2-8 pthread)")
        write(os.path.join(PLACE, "CMakeLists.txt"), "\n".join(top) + "\n")
        write(os.path.join(PLACE, "lists.cc"), LISTS)
        # The last three: what the algorithms name.
        for file in ("cmake/plugins.cmake", "cmake/plugin_table.cmake", "core/base/plugin.h", "core/algorithms/losses/ppo.cc",
                     "core/algorithms/losses/reinforce.cc", "core/algorithms/advantages/group_relative.cc"):
            os.makedirs(os.path.dirname(os.path.join(PLACE, file)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, file), os.path.join(PLACE, file))

    def new(self, *arguments, cwd=PLACE):
        return run(TIDEPOOL, "new", *arguments, cwd=cwd)

    def test_1_one_command_writes_the_file_and_its_test_and_says_how_to_go_on(self):
        for kind, folder in KINDS.items():
            name = NAMES[kind]
            made = self.new(kind, name)
            self.assertEqual(made.returncode, 0, made.stderr)
            with open(os.path.join(PLACE, folder, f"{name}.cc"), encoding="utf-8") as file:
                text = file.read()
            self.assertRegex(text, rf"(?m)^TP_PLUGIN\(\w+, {name}\)")
            self.assertNotRegex(text, f"my_|My{kind.capitalize()}")
            self.assertTrue(os.path.exists(os.path.join(PLACE, f"tests/plugins/{kind}_{name}_test.cc")))
            self.assertIn("ninja -C build tidepool tidepool-worker", made.stdout)
            guide = os.path.join(ROOT, re.search(r"guide +(\S+)", made.stdout)[1])
            with open(guide, encoding="utf-8") as file:
                page = file.read()
            for block in re.findall(r"^```cpp\n(.*?)^```$", page, re.S | re.M):
                plugin = re.search(r"(?m)^TP_PLUGIN\(\w+, (\w+)\)", block)
                if not plugin:
                    continue
                self.assertIn(f"build/bin/tidepool new {kind} {plugin[1]} ", page)
                made = self.new(kind, plugin[1])
                self.assertEqual(made.returncode, 0, made.stderr)
                write(os.path.join(PLACE, folder, f"{plugin[1]}.cc"), block)
                self.pasted.append(f"{kind} {plugin[1]}")
        self.assertEqual({line.split()[0] for line in self.pasted}, KINDS.keys() - {"policy"}, "a guide lost its example")
        # Many tests in one source: GoogleTest's header is most of what each costs.
        for source, plugins in [("templates", [f"{kind} {name}" for kind, name in NAMES.items()]), ("guides", self.pasted)]:
            write(os.path.join(PLACE, f"tests_of_{source}.cc"),
                  "".join(f'#include "tests/plugins/{line.replace(" ", "_")}_test.cc"\n' for line in plugins))

    def test_1b_a_folder_of_ones_own_may_be_anywhere(self):
        own = os.path.join(PLACE, "repository_of_ones_own")
        made = run(TIDEPOOL, "new", "control", "elsewhere", "--plugins", own, cwd="/")
        self.assertEqual(made.returncode, 0, made.stderr)
        for file in ("control_tasks/elsewhere.cc", "tests/control_elsewhere_test.cc"):
            self.assertTrue(os.path.exists(os.path.join(own, file)), file)
        self.assertIn(f"-DTIDEPOOL_PLUGINS={own}\n", made.stdout)

    def test_2_the_build_finds_compiles_and_lists_them_without_an_edit(self):
        made = run("cmake", "-S", PLACE, "-B", os.path.join(PLACE, "build"), "-G", "Ninja")
        self.assertEqual(made.returncode, 0, made.stderr)
        made = run("ninja", "-C", os.path.join(PLACE, "build"), "-j", "2")
        self.assertEqual(made.returncode, 0, made.stdout)
        listed = run(os.path.join(PLACE, "build", "lists")).stdout.split("\n")
        for line in self.pasted + [f"{kind} {name}" for kind, name in NAMES.items()]:
            self.assertIn(line, listed)

    def test_2b_the_tests_that_were_written_pass_with_the_code_of_the_guides_too(self):
        made = run(os.path.join(PLACE, "build", "tests"))
        self.assertEqual(made.returncode, 0, made.stdout)
        for name in [*NAMES.values(), *(line.split()[1] for line in self.pasted)]:
            self.assertIn(f"My{name.capitalize()}Test.", made.stdout)

    def test_3_what_cannot_be_is_refused_in_words(self):
        for arguments, said in [(("reward", "verdict"), "is there already; edit it"),
                                (("reward", "exact_answer"), "reward 'exact_answer' is there already"),
                                (("environment", "cartpole"), "is there already"),
                                (("reward", "Bad-Name"), "small letters, digits and underscores"),
                                (("reword", "x"), "a plug-in is one of reward, task")]:
            made = self.new(*arguments)
            self.assertEqual(made.returncode, 2)
            self.assertIn(said, made.stderr)
        made = self.new("reward", "x", cwd="/")
        self.assertEqual(made.returncode, 2)
        self.assertIn("not in a checkout of Tidepool", made.stderr)

    def test_3b_a_file_that_the_build_would_not_look_at_is_named(self):
        for file, said in [("core/tasks/rewards/late.cpp", "late.cpp: is not compiled, because plug-ins are files *.cc"),
                           ("scheduler/policies/mine/late.cc", "mine/late.cc: is not compiled, because sub-folders")]:
            write(os.path.join(PLACE, file), "// nothing\n")
            made = run("ninja", "-C", os.path.join(PLACE, "build"))
            self.assertNotEqual(made.returncode, 0)
            self.assertIn(said, " ".join((made.stdout + made.stderr).split()))
            os.remove(os.path.join(PLACE, file))

    def test_3d_a_plug_in_that_is_hidden_in_an_anonymous_namespace_is_told_by_the_compiler(self):
        source = os.path.join(PLACE, "hidden.cc")
        for begin, end, good in [("", "", True), ("namespace {\n", "\n}", False)]:
            write(source, '#include "core/base/plugin.h"\nstruct RewardPlugin {};\n' + begin
                  + "TP_PLUGIN(Reward, hidden) { return {}; }" + end + "\n")
            made = run("c++", "-std=c++20", f"-I{ROOT}", "-fsyntax-only", source)
            self.assertEqual(made.returncode == 0, good, made.stderr)
            self.assertEqual("TP_PLUGIN stands in an anonymous namespace" in made.stderr, not good, made.stderr)
        os.remove(source)

    def test_3c_a_folder_of_ones_own_may_hold_more_than_plug_ins_but_none_in_the_wrong_place(self):
        own = os.path.join(PLACE, "own")

        def configured():
            made = run("cmake", "-S", f"{PLACE}/with_own", "-B", f"{PLACE}/with_own/build", f"-DTIDEPOOL_PLUGINS={own}")
            return made.returncode, " ".join(made.stderr.split())

        write(os.path.join(PLACE, "with_own", "CMakeLists.txt"),
              f"cmake_minimum_required(VERSION 3.25)\nproject(own LANGUAGES NONE)\ninclude({ROOT}/cmake/plugins.cmake)\n")
        for file in ("LICENSE", "README.md", ".git/HEAD", "docs/a.md", "data/make.cc"):
            write(os.path.join(own, file), "// nothing\n")
        code, said = configured()
        self.assertNotEqual(code, 0)
        self.assertIn("README.md", said)
        self.assertIn("expected a folder with some of rewards, tasks", said)
        write(os.path.join(own, "rewards", "b.cc"), "TP_PLUGIN(Reward, b) {}\n")
        self.assertEqual(configured(), (0, ""))
        for file in ("reward/a.cc", "Control-Tasks/a.cc", "policy/a.cc", "family/a.cc", "loss/a.cc", "advantage/a.cc", "b.cc", "models/a.cc"):
            write(os.path.join(own, file), "TP_PLUGIN(Family, a) {}\n" if file == "models/a.cc" else "// nothing\n")
            code, said = configured()
            self.assertNotEqual(code, 0, file)
            self.assertIn(f"with [{file.split('/')[0]}]; expected a folder with some of rewards, tasks", said)
            os.remove(os.path.join(own, file))
            if "/" in file:
                os.rmdir(os.path.join(own, os.path.dirname(file)))

    def table_of(self, text, kinds="Reward"):
        write(os.path.join(PLACE, "wrong.cc"), text)
        return run("cmake", f"-DOUT={PLACE}/table.cc", f"-DROOT={PLACE}", "-DHEADERS=a.h", "-DNAMESPACE=n", f"-DKINDS={kinds}",
                   f"-DFILES={PLACE}/wrong.cc", "-P", os.path.join(ROOT, "cmake/plugin_table.cmake"))

    def test_4_a_file_that_is_no_plug_in_stops_the_build_with_its_name(self):
        cases = [("// nothing\n", "wrong.cc: has no plug-in; every .cc file in this folder defines one by a line TP_PLUGIN(Reward, wrong)"),
                 ("\n\nTP_PLUGIN(Task, a) {", "wrong.cc:3: TP_PLUGIN(Task, a) does not belong into this folder; expected Reward"),
                 ("TP_PLUGIN(Reward, Bad) {", "a name has small letters"),
                 ("TP_PLUGIN(Reward, a;b) {", "a name has small letters"),
                 ("/*\n*/\n  TP_PLUGIN(Reward, a) {", "wrong.cc:3: found ` TP_PLUGIN(Reward, a) {`; write TP_PLUGIN(KIND, name) at the beginning of a line"),
                 ("TP_PLUGIN(Reward, a) {}\nTP_PLUGIN(Reward, a) {}", "wrong.cc:2: TP_PLUGIN(Reward, a): wrong.cc:1 has that name as well")]
        for text, said in cases:
            made = self.table_of(text)
            self.assertNotEqual(made.returncode, 0, text)
            self.assertIn(said, " ".join(made.stderr.split()))
            self.assertFalse(os.path.exists(os.path.join(PLACE, "table.cc")))

    def test_4b_every_plug_in_that_the_compiler_sees_is_in_the_table_and_no_other(self):
        made = self.table_of("""// "TP_PLUGIN(Reward, no1)" and rewards/*.cc are words of a comment.
/* TP_PLUGIN(Reward, no2)
TP_PLUGIN(Reward, no3) {
don't " */
TP_PLUGIN(Reward,a) { return {.doc = "[a"}; }  // [
TP_PLUGIN( Reward , b ) { return {.doc = "]; /* \\" /*"}; } /* a */ /* b
TP_PLUGIN(Reward, no4) {}
*/ // /*
const char quote = '"'; const char* files = "/*.cc";
#define LONG a; \\
  b
TP_PLUGIN (Reward, c) {
  //* TP_PLUGIN(Reward, no5)
}
TP_PLUGIN(Reward,\td) {}""")
        self.assertEqual(made.returncode, 0, made.stderr)
        with open(os.path.join(PLACE, "table.cc"), encoding="utf-8") as file:
            table = file.read()
        self.assertEqual(re.findall(r'\{"(\w+)", (\w+), "(\S+)"\}', table), [(name, f"RewardPlugin_{name}", "wrong.cc") for name in "abcd"])


if __name__ == "__main__":
    unittest.main()
