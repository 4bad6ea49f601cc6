"""Real deployments on one machine: SuperLink, SuperNodes and sites as processes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from commands import LONGEST, called, command
from deployments import METHODS, app
from test_deploy import assert_same, model, records
from test_deploy_secure import secure_app

pytest.importorskip("flwr", reason="Flower is not installed")
from undrift.deploy.flower.environment import environment
from undrift.deploy.flower.processes import free_port, last_lines, stop
from undrift.deploy.flower.superlink import APP
from undrift.deploy.launch import sites_here, start_site
from undrift.deploy.private_files import OTHERS

pytestmark = pytest.mark.deploy

ONCE = "\n[evaluation]\nevery = 5\n"


def server(file, out, port, *more):
    """A server as a process."""
    arguments = ["deploy", "server", str(file), "--port", str(port), "--out", str(out), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "undrift", *arguments, "--quiet"], start_new_session=True
    )


LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sh", b"lo", 0x41))  # up and running
os.execv(sys.executable, [sys.executable, "-m", "undrift", *sys.argv[1:]])
"""


def offline(*arguments, cwd):
    """Run the command without any network but loopback, if the system allows it."""
    apart = ["unshare", "-rn"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        return command(*arguments, cwd=cwd)
    return subprocess.run(
        [*apart, sys.executable, "-c", LOOPBACK, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
        timeout=LONGEST,
    )


def wait(condition, seconds=90, what="it did not happen"):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def committed(out, label):
    try:
        return len(records(out, label))
    except FileNotFoundError:
        return 0


def test_one_start_serves_all_methods_and_computes_what_a_simulation_computes(tmp_path):
    labels = [*METHODS, "FedAsync"]
    file = app(tmp_path / "app", labels, text='objective = "clients"\n')
    file.write_text(file.read_text() + ONCE)
    done = offline("deploy", "local", "app", "--sites", "3", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Waiting for a, b, c" in done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert called("run", str(file), "--out", "sim", "--quiet", cwd=tmp_path).returncode == 0
    for label in METHODS:
        assert_same(tmp_path / "sim", tmp_path / "out", label, tolerance=1e-5)
        last, other = records(tmp_path / "out", label)[-1], records(tmp_path / "sim", label)[-1]
        assert last["metrics"] == pytest.approx(other["metrics"], rel=1e-3)
    asynchronous = records(tmp_path / "out", "FedAsync")
    assert sum(record["updates"] for record in asynchronous) == 15  # one for every answer
    assert asynchronous[-1]["metrics"]["train_loss"] < asynchronous[0]["metrics"]["train_loss"]
    # What server, SuperLink, sites and SuperNodes wrote is for their owner alone.
    written = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert len(written) > 50
    assert not [path for path in written if path.lstat().st_mode & OTHERS]
    assert called("report", "out", cwd=tmp_path).returncode == 0
    # Nothing is left running.
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True)
    assert not left.stdout.split()


def test_real_sites_aggregate_securely(tmp_path):
    """Five sites with certificates, threshold 3: every method ends where a simulation ends."""
    methods = ("FedAvg", "SCAFFOLD", "FedDyn", "FedDR")
    file = secure_app(tmp_path / "app", methods)
    file.write_text(file.read_text().replace("rounds = 5", "rounds = 1") + ONCE)
    done = command("deploy", "local", "app", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plain = ["--set", "privacy=none"]
    done = called("run", str(file), "--out", "sim", "--quiet", *plain, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for label in methods:
        assert_same(tmp_path / "sim", tmp_path / "out", label, tolerance=1e-6)
    for site in "abcde":
        log = tmp_path / "out" / "sites" / site / "state" / site / "audit.jsonl"
        told = [json.loads(line) for line in log.read_text().splitlines()]
        work = [each for each in told if each.get("kind") == "work"]
        assert len(work) == len(methods) and all(each["masked"] for each in work)


HELD = """

class Held(nn.Module):
    \"\"\"At site b, waits while there is a file `hold`, and says so by another one.\"\"\"

    def forward(self, x):
        while "b" in sys.argv and Path(HOLD).exists():
            Path(HOLD + "ing").touch()
            time.sleep(0.05)
        return x


plain = model


def model():
    return nn.Sequential(Held(), *plain())
"""


def test_a_dead_site_and_a_dead_server(tmp_path):
    """A site is killed during a round, then the server: the resumed run finishes."""
    file = app(tmp_path / "app", ["SCAFFOLD"])
    hold, holding = tmp_path / "hold", tmp_path / "holding"
    code = f"import sys\nimport time\nfrom pathlib import Path\n\nHOLD = {str(hold)!r}\n"
    own = file.with_name("site.py")
    own.write_text(code + own.read_text() + HELD)
    text = file.read_text().replace("rounds = 5", "rounds = 6")
    file.write_text(text.replace("timeout = 60", "timeout = 15") + ONCE.replace("5", "6"))
    out, port = tmp_path / "out", free_port()
    address = f"127.0.0.1:{port}"
    with sites_here(file, "abc", address, tmp_path / "sites") as sites:
        running = server(file, out, port)
        try:
            wait(
                lambda: committed(out, "SCAFFOLD") >= 3,
                what=last_lines(out / "flower/superlink.log"),
            )
            hold.touch()
            wait(holding.exists, what="site b was not asked")
            before = committed(out, "SCAFFOLD")
            _kill(sites[1])
            hold.unlink()
            killed = time.monotonic()
            wait(lambda: committed(out, "SCAFFOLD") > before)
            assert time.monotonic() - killed < 30  # the time-out, and what evaluation may take
            without = records(out, "SCAFFOLD")[before]
            assert [site for site, _ in without["lost"]] == ["b"]
            assert not without["rejected"]
            running.kill()
            running.wait()
            before = committed(out, "SCAFFOLD")
            sites[1] = start_site(file, "b", address, tmp_path / "sites")
            done = command("resume", str(out), "--quiet", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        finally:
            stop([running])
    found = records(out, "SCAFFOLD")
    assert [record["round"] for record in found] == list(range(7))
    assert before < 7
    # The restarted site takes part again, with its state.
    assert found[-1]["lost"] == [] and sorted(found[-1]["cohort"]) == ["a", "b", "c"]
    assert not any(record["rejected"] for record in found)
    assert (out / "SCAFFOLD" / "seed-3" / "model.safetensors").is_file()


def _kill(site):
    """Kill a site; its SuperNode ends with it."""
    os.kill(site.pid, signal.SIGKILL)
    site.wait()


def test_a_site_whose_server_is_gone_ends_within_five_seconds(tmp_path):
    file = app(tmp_path / "app")
    site = start_site(file, "a", f"127.0.0.1:{free_port()}", tmp_path / "sites")
    try:
        wait(lambda: "cannot be reached" in _said(tmp_path / "sites"))
        began = time.monotonic()
        site.terminate()
        assert site.wait(30) == 0
        assert time.monotonic() - began < 5
    finally:
        stop([site])
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True)
    assert not left.stdout.split()


def test_a_server_that_is_killed_ends_as_if_it_had_not_been(tmp_path):
    """Both directions are compressed; the resumed server sends whole models once."""
    top = '{name = "top-k", ratio = 0.2}'
    file = app(tmp_path / "app", ["SCAFFOLD"], f"compression = {{up = {top}, down = {top}}}\n")
    file.write_text(file.read_text() + ONCE)
    out, port = tmp_path / "out", free_port()
    with sites_here(file, "abc", f"127.0.0.1:{port}", tmp_path / "sites"):
        running = server(file, out, port)
        wait(lambda: committed(out, "SCAFFOLD") >= 3)
        running.kill()
        running.wait()
        assert committed(out, "SCAFFOLD") < 6
        done = command("resume", str(out), "--quiet", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert called("run", str(file), "--out", "sim", "--quiet", cwd=tmp_path).returncode == 0
    assert_same(tmp_path / "sim", out, "SCAFFOLD", tolerance=1e-5)
    vectors = dict.fromkeys(("x", "c"), 3 * 53 * 4)
    whole = [record["bytes_down"] == vectors for record in records(out, "SCAFFOLD")[1:]]
    # In the first round, and in the first of the resumed server.
    assert whole[0] and 1 <= sum(whole) <= 2 and whole != [True] * 5


def test_a_local_deployment_loses_its_superlink_and_goes_on(tmp_path):
    """The server reports it, refuses a second server, and restarts its sites on resume."""
    file = app(tmp_path / "app")
    file.write_text(file.read_text().replace("rounds = 5", "rounds = 12") + ONCE)
    out = tmp_path / "out"
    local = [sys.executable, "-m", "undrift", "deploy", "local", str(file), "--out", str(out)]
    running = subprocess.Popen(local, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        wait(lambda: committed(out, "FedAvg") >= 2)
        second = called("resume", str(out), "--quiet", cwd=tmp_path)
        assert "Another process is running in" in second.stderr
        assert running.poll() is None
        os.kill(json.loads((out / "flower" / "superlink.json").read_text())["process"], 9)
        _, words = running.communicate(timeout=60)
    finally:
        stop([running])
    assert "The connection to the SuperLink is lost" in " ".join(words.split())
    assert "Traceback" not in words
    assert committed(out, "FedAvg") < 13
    # The sites started here get the new number of rounds with the server.
    done = command("resume", str(out), "--rounds", "14", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert committed(out, "FedAvg") == 15
    assert not any(record["rejected"] for record in records(out, "FedAvg"))


def test_the_apps_run_by_flowers_own_means(tmp_path):
    """A plain SuperLink, plain SuperNodes, and `flwr run`, as the guide says."""
    file = app(tmp_path / "app")
    text = file.read_text().replace("rounds = 5", "rounds = 2").replace('"b", "c"]', '"b"]')
    file.write_text(text + ONCE.replace("5", "2"))
    out, port, around = tmp_path / "out", free_port(), environment(tmp_path / "home")
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    where = ["--insecure", "--host", "127.0.0.1", "--port"]
    processes = [_flower(around, "flower-superlink", *where, port)]
    for site in "ab":
        own = f'experiment="{file}" site="{site}" state="{tmp_path / site}"'
        own = ["--superlink", f"127.0.0.1:{port}", "--node-config", own]
        processes.append(_flower(around, "flower-supernode", *where, free_port(port), *own))
    try:
        wait(lambda: _answers(port), what="the SuperLink does not start")
        run = ["run", APP, "here", "--run-config", f'experiment="{file}" out="{out}"', "--stream"]
        assert _flower(around, "flwr", *run).wait(LONGEST) == 0
    finally:
        stop(processes)
    assert called("run", str(file), "--out", "sim", "--quiet", cwd=tmp_path).returncode == 0
    assert_same(tmp_path / "sim", out, "FedAvg", tolerance=1e-5)


def _flower(around, program, *arguments):
    """Start one of Flower's own programs."""
    command = [str(Path(sys.executable).with_name(program)), *map(str, arguments)]
    return subprocess.Popen(command, env=around, start_new_session=True)


def _answers(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_with_certificates_only_those_who_have_a_key_get_in(tmp_path):
    file = app(tmp_path / "app", ["FedAvg"])
    file.write_text(file.read_text().replace("rounds = 5", "rounds = 1"))
    sites = [part for name in ("a", "b") for part in ("--site", name)]
    made = called("deploy", "certs", "certs", "--host", "127.0.0.1", *sites, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "undrift deploy site" in made.stdout
    assert called("deploy", "certs", "alien", "--site", "c", cwd=tmp_path).returncode == 0
    _strange(tmp_path)
    out, port = tmp_path / "out", free_port()
    address, certs = f"127.0.0.1:{port}", tmp_path / "certs" / "sites"
    running = server(file, out, port, "--certs", str(tmp_path / "certs" / "server"))
    strangers = []
    try:
        with sites_here(file, "ab", address, tmp_path / "sites", certs):
            wait(lambda: (out / "flower" / "superlink.json").is_file())
            strangers = [
                start_site(file, "c", address, tmp_path / "unregistered", tmp_path / "strangers"),
                start_site(
                    file, "c", address, tmp_path / "elsewhere", tmp_path / "alien" / "sites"
                ),
            ]
            wait(
                lambda: "does not know this site's key" in _said(tmp_path / "unregistered"),
                what="let in without a key",
            )
            wait(
                lambda: "was not signed by this site's CA" in _said(tmp_path / "elsewhere"),
                what="trusted another CA",
            )
            # Only the server may start runs and register keys.
            with pytest.raises(urllib.error.HTTPError) as refused:
                _post(f"https://{address}/v1/control/list-runs", tmp_path / "certs/server/ca.crt")
            assert refused.value.code == 404
            stop(strangers)
            _register(tmp_path, "c")
            stop([running])
            running = server(file, out, port, "--certs", str(tmp_path / "certs" / "server"))
            with sites_here(file, "c", address, tmp_path / "sites", certs):
                running.wait(timeout=120)
        assert running.returncode == 0
        assert sorted(records(out)[-1]["cohort"]) == ["a", "b", "c"]
        assert model(out, "FedAvg")
    finally:
        stop([running, *strangers])


def test_the_key_of_a_site_that_is_expelled_during_a_run_is_revoked(tmp_path):
    file = app(tmp_path / "app", ["FedAvg"])
    file.write_text(file.read_text().replace("rounds = 5", "rounds = 1000") + ONCE)
    sites = [part for name in "abc" for part in ("--site", name)]
    made = called("deploy", "certs", "certs", "--host", "127.0.0.1", *sites, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    out, port, own = tmp_path / "out", free_port(), tmp_path / "certs"
    running = server(file, out, port, "--certs", str(own / "server"))
    try:
        with sites_here(file, "abc", f"127.0.0.1:{port}", tmp_path / "sites", own / "sites"):
            wait(lambda: committed(out, "FedAvg") > 1)
            assert called("deploy", "expel", str(out), "c", cwd=tmp_path).returncode == 0
            wait(
                lambda: "does not know this site's key" in _said(tmp_path / "sites" / "c"),
                what="its key is still valid",
            )
            rounds = committed(out, "FedAvg")
            wait(lambda: committed(out, "FedAvg") > rounds + 1, what="the others do not go on")
            # While its sites are there: a server that waits for them ends only after the wait, and
            # killed meanwhile it would leave its SuperLink behind.
            running.terminate()
            running.wait(60)
        last = records(out)[-1]
        assert last["expelled"] == ["c"] and "c" not in last["cohort"]
    finally:
        stop([running])


def _strange(folder):
    """A key for c that nobody registered, with the right CA."""
    assert called("deploy", "certs", "other", "--site", "c", cwd=folder).returncode == 0
    own = folder / "strangers" / "c"
    own.parent.mkdir()
    (folder / "other" / "sites" / "c").rename(own)
    (own / "ca.crt").write_bytes((folder / "certs" / "server" / "ca.crt").read_bytes())


def _register(folder, site):
    """Create a key for a site, which the server accepts from its next start on."""
    assert called("deploy", "certs", "certs", "--site", site, cwd=folder).returncode == 0


def _said(folder):
    return "".join(each.read_text("utf-8", "replace") for each in folder.rglob("*.log"))


def _post(url, ca):
    import ssl

    context = ssl.create_default_context(cafile=ca)
    request = urllib.request.Request(url, data=b"", method="POST")
    return urllib.request.urlopen(request, timeout=5, context=context)
