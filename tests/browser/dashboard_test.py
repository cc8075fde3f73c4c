"""The dashboard in a browser: who gets in, what it shows, and that it follows a run without being loaded again."""
import http.server
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import browser


class DashboardPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)

    def serve(self, root=None, port=0):
        server = subprocess.Popen([browser.TIDEPOOL, "dashboard", str(root or self.dir), "--port", str(port)], stdout=subprocess.PIPE, text=True)

        def end():
            server.kill()
            server.wait()
            server.stdout.close()
        self.addCleanup(end)
        lines = [server.stdout.readline(), server.stdout.readline()]
        self.assertRegex(lines[1], r"^http://127\.0\.0\.1:\d+/(\?run=\w+)?#key=[0-9a-f]{64}$")
        return server, lines[1].strip()

    def look(self, tab):
        self.assertEqual(tab.console, [])
        self.assertEqual(tab.too_wide(), [])

    def test_without_the_key_nothing_is_shown_and_with_it_the_address_forgets_it(self):
        browser.write_run(self.dir / "one-of-them", "rl", [(1, {"critic/score/mean": .5})])
        server, url = self.serve()
        start, key = url.split("#key=")
        for headers in [{}, {"Authorization": f"Bearer {key[:-1]}"}, {"Cookie": f"tidepool-{start.split(':')[2].strip('/')}={key}"}]:
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(start + "api/runs", headers=headers), timeout=20)
            self.assertEqual(refused.exception.code, 401)
            self.assertNotIn("one-of-them", refused.exception.read().decode())
            refused.exception.close()
        with urllib.request.urlopen(urllib.request.Request(start + "api/runs", headers={"Authorization": f"Bearer {key}"}), timeout=20) as answer:
            self.assertIn("one-of-them", answer.read().decode())
        with urllib.request.urlopen(start, timeout=20) as answer:
            self.assertEqual((answer.headers["Set-Cookie"], answer.headers["Referrer-Policy"]), (None, "no-referrer"))
            page = answer.read().decode()
            self.assertNotIn("one-of-them", page)
            self.assertNotIn(key, page)
        tab = self.browser.open(url)
        tab.wait("document.querySelector('a.name')")
        self.assertEqual(tab.evaluate("location.href"), start)
        self.assertEqual(tab.evaluate("document.cookie"), "")
        self.assertNotIn(key, tab.dom())
        self.look(tab)
        stranger = self.browser.open(start)  # another browser, in which no tab has the key
        stranger.wait("document.getElementById('how')")
        self.assertIn("Open the whole address", stranger.text())
        self.assertNotIn("one-of-them", stranger.dom())
        self.look(stranger)
        self.browser.open(url, beside=stranger).wait("document.querySelector('a.name')")
        stranger.call("Page.bringToFront")  # pages that nobody sees rest
        stranger.wait("document.querySelector('a.name')", what="the tab without a key to go on with that of another one")
        server.send_signal(signal.SIGINT)
        self.assertEqual(server.wait(timeout=20), 0)

    def test_the_key_stays_with_a_tab_and_the_others_of_its_origin_and_no_other_server_sees_it(self):
        browser.write_run(self.dir / "one", "rl", [(1, {"critic/score/mean": .5})])
        server, url = self.serve()
        start, key = url.split("#key=")
        tab = self.browser.open(url)
        tab.wait("document.querySelector('a.name')")
        tab.call("Page.reload")
        tab.wait("document.querySelector('a.name')", what="the list after loading the page again")
        tab.evaluate("document.querySelector('a.name').click()")
        tab.wait("location.search === '?run=one' && document.querySelector('.badge')", what="the run behind the link")
        tab.evaluate("setTimeout(() => history.back())")
        tab.wait("location.search === '' && document.querySelector('a.name')", what="the list, going back")
        second = self.browser.open(start + "?run=one", beside=tab)  # as a link in a new tab
        second.wait("document.querySelector('.badge')", what="the run in a second tab")
        for shown in [tab, second]:
            self.look(shown)

        heard = []

        class Other(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                heard.append(f"{self.requestline}\n{self.headers}")
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"<title>other</title>")

            def log_message(self, *_):
                pass
        other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
        self.addCleanup(other.server_close)
        self.addCleanup(other.shutdown)
        threading.Thread(target=other.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{other.server_port}/"
        for way in [f"setTimeout(() => {{ location.href = '{address}followed'; }})", None]:  # from the dashboard, and by hand
            tab.evaluate(way) if way else tab.go(address + "typed")
            tab.wait("document.title === 'other'")
            self.assertEqual(tab.evaluate("[document.cookie, document.referrer, sessionStorage.length, localStorage.length].join()"), ",,0,0")
        self.assertGreaterEqual(len([h for h in heard if "followed" in h or "typed" in h]), 2)
        for head in heard:
            self.assertNotIn(key, head)
            self.assertNotIn(start.strip("/"), head, "a referrer")
            self.assertNotRegex(head.lower(), "cookie:|authorization:")

        # Another start on the same port has another key: who has the old one is told, and goes on with the new address.
        server.send_signal(signal.SIGINT)
        self.assertEqual(server.wait(timeout=20), 0)
        _, again = self.serve(port=start.split(":")[2].strip("/"))
        second.wait("document.getElementById('trouble').textContent.includes('started again since')")
        third = self.browser.open(again, beside=second)
        third.wait("document.querySelector('a.name')")
        second.call("Page.bringToFront")
        second.wait("document.getElementById('trouble').hidden", what="the tab with the old key to go on with the new one")

    def test_list_selection_and_comparison_in_both_widths_and_themes(self):
        for name, rate in [("one", "1e-3"), ("two", "2e-3")]:
            browser.write_run(self.dir / name, "rl", [(step, {"critic/score/mean": step / 9, "eval/accuracy": step / 18}) for step in range(1, 10)],
                              f"train:\n  steps: 9\n  learning_rate: {rate}\n", summary={"exit": 0, "finished": True, "steps": 9})
        browser.write_run(self.dir / "broken", "sft", [], summary={"exit": 3, "steps": 4, "why": "the disk was full at step 4"})
        _, url = self.serve()
        for width, dark in [(1400, False), (390, True)]:
            tab = self.browser.open(url, width, dark)
            tab.wait("document.querySelectorAll('a.name').length === 3")
            self.assertEqual(tab.evaluate("document.documentElement.dataset.theme"), "dark" if dark else "light")
            for text in ["finished", "failed", "the disk was full at step 4", "3 runs"]:
                self.assertIn(text, tab.text())
            tab.evaluate("for (const box of document.querySelectorAll('.run input')) if (/one|two/.test(box.ariaLabel)) box.click()")
            tab.evaluate("[...document.querySelectorAll('header button')].find(b => b.textContent === 'compare 2 runs').click()")
            tab.wait("document.querySelectorAll('figure').length > 1 && document.getElementById('differences')")
            self.assertIn("train.learning_rate", tab.text())
            folders = tab.evaluate("[...document.querySelectorAll('#runs tr:nth-child(2) td')].map(x => x.textContent).join(' ')")
            self.assertEqual(sorted(folders.split()), ["folder", "one", "two"])
            self.look(tab)

    def test_a_long_badge_keeps_to_its_column(self):
        for name, finished in [("one", True), ("two", False)]:
            browser.write_run(self.dir / name, "rl", [(1, {"critic/score/mean": .5})], "train:\n  steps: 9\n",
                              summary={"exit": 0, "finished": finished, "stopped": not finished, "steps": 9 if finished else 1})
        _, url = self.serve()
        for width in [1200, 1062, 420]:
            tab = self.browser.open(url, width, False)
            tab.wait("document.querySelectorAll('a.name').length === 2")
            self.assertIn("stopped before its last step", tab.text())
            lefts = tab.evaluate("[...document.querySelectorAll('.run')].map(r => [...r.querySelectorAll('.part')].map(p => Math.round(p.getBoundingClientRect().left)).join()).join(' ')")
            self.assertEqual(*lefts.split(), f"columns of rows differ at {width}")
            wide = tab.evaluate("[...document.querySelectorAll('.run .badge')].filter(b => b.getBoundingClientRect().right > b.parentNode.getBoundingClientRect().right + 1).length")
            self.assertEqual(wide, 0, f"a badge lies over its neighbour at {width}")
            self.look(tab)

    def test_a_run_has_one_name_and_one_word_for_its_state(self):
        run = browser.write_run(self.dir / "srv", "rl", [(1, {"critic/score/mean": .5})], summary={"exit": 3, "finished": False, "stopped": False, "steps": 1})
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("name: srv", "name: test-rl-colocated"))
        _, url = self.serve()
        tab = self.browser.open(url)
        tab.wait("document.querySelector('a.name')")
        self.assertEqual(tab.evaluate("document.querySelector('.run .badge').textContent"), "failed")
        tab.call("Page.addScriptToEvaluateOnNewDocument", source="""window.said = [];
            new MutationObserver(() => {
              const text = document.querySelector('div.samples')?.textContent;
              if (text && text !== said.at(-1)) said.push(text);
            }).observe(document, {childList: true, subtree: true});""")
        tab.evaluate("document.querySelector('a.name').click()")
        tab.wait("document.querySelector('h1')?.textContent === 'srv'", what="the name of the list as heading")
        self.assertEqual(tab.evaluate("document.querySelector('header .badge').textContent"), "failed, exit code 3")
        self.assertIn("test-rl-colocated", tab.text())
        tab.wait("document.querySelector('div.samples').textContent === 'None.'", what="that it has no samples")
        self.assertEqual(tab.evaluate("said.join('|')"), "reading ...|None.", "it was said before the run was read")
        self.look(tab)

    def test_figures_of_many_digits_keep_to_their_tiles(self):
        rows = [(step, {"critic/score/mean": -0.000456789 if step < 4 else -0.000123456, "eval/reward/mean": -0.000345678 - step / 1e6, "eval/total": 123456, "eval/lost": 1234,
                        "eval/reward/low": -123456.789, "eval/reward/high": -12345.6789, "rollout/tok_s": 123456.7, "timing_s/step": .0012345}) for step in range(1, 31)]
        browser.write_run(self.dir / "one", "rl", rows, "train:\n  steps: 10000000\n", summary={"exit": 0, "finished": True, "steps": 30})
        _, url = self.serve(self.dir / "one")
        for width in [1400, 1200, 1000, 700, 390]:
            tab = self.browser.open(url, width)
            tab.wait("/mean reward/.test(document.body.innerText)")
            self.look(tab)

    def test_a_run_of_the_real_programs_is_followed_without_loading_the_page_again(self):
        # So many steps that it goes on until it is stopped below.
        trained = subprocess.Popen([browser.TIDEPOOL, "train", "configs/test/rl_split.yaml", "scheduler.placement=multiplexed", "cluster.slots=2",
                                    "train.steps=100000", "--run-dir", str(self.dir / "live")], cwd=browser.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def end():
            if trained.poll() is None:
                trained.send_signal(signal.SIGINT)
                trained.wait(timeout=120)
        self.addCleanup(end)
        while not (self.dir / "live/config.yaml").exists():
            self.assertIsNone(trained.poll())
            os.sched_yield()
        _, url = self.serve(self.dir / "live")  # a run: its page, with the others of its folder a link away
        tab = self.browser.open(url)
        tab.evaluate("window.here = true")
        steps = "+((/optimizer steps\\n([0-9]+)/.exec(document.body.innerText) || [])[1] || 0)"
        first = tab.wait(steps, timeout=120, what="the first step")
        tab.wait(f"{steps} > {first}", timeout=120, what="a later step")
        self.assertTrue(tab.evaluate("window.here"), "the page was loaded again")
        tab.wait("document.querySelector('#tide canvas')", what="the slots")
        tab.wait("document.querySelector('.sample pre.answer')", what="samples")
        tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        tab.wait("document.querySelector('pre.log').textContent.length > 20 || document.querySelectorAll('select[aria-label=log] option').length > 1", what="a log")
        self.assertIn("running", tab.text())
        self.look(tab)
        tab.resize(390)
        self.look(tab)
        end()
        tab.wait("/stopped|finished/.test(document.querySelector('.badge').textContent)", timeout=60, what="the end of the run")
        shutil.rmtree(self.dir / "live")
        tab.wait("document.getElementById('trouble').textContent.includes('no such run')", timeout=60, what="a word that the run is gone")


if __name__ == "__main__":
    browser.need_chromium()
    unittest.main()
