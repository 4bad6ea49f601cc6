"""A run with compression, robust statistics and attackers, killed and resumed: the same bits."""

import signal
import subprocess
import sys

import torch

PROGRAM = """
import os, signal, sys
import torch
import undrift as ud

g = torch.Generator().manual_seed(5)
clients = [
    (torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)) for n in range(9, 18)
]
model = torch.nn.Linear(6, 3)
with torch.no_grad():
    model.weight.fill_(0.1)
    model.bias.zero_()
options = dict(
    model=model, data=ud.data.FederatedData.from_clients(clients),
    local=ud.SGD(lr=0.05, batch_size=5, steps=3), cohort=7, rounds=6, engine="serial",
    compression=ud.compression.Compression(ud.compression.QSGD(3, 8), ud.compression.TopK(0.2)),
    robust=[ud.NormBound(), ud.robust.TrimmedMean(0.2)],
    attack=ud.attacks.Gaussian(0.2, scale=2.0), progress=False,
)

def kill(run, record):
    if record.round == 4:  # before the round is committed
        os.kill(os.getpid(), signal.SIGKILL)

folder, how = sys.argv[1:]
if how == "resume":
    result = ud.resume(folder, ud.FedAvg(), **options)
else:
    result = ud.train(ud.FedAvg(), out=folder, callbacks=[kill] if how == "kill" else [], **options)
torch.save({"x": result.x, "bytes": [r.bytes_down for r in result.records]}, folder + ".pt")
"""


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    def call(folder, how):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / folder), how]
        return subprocess.run(command, capture_output=True, check=False)

    assert call("whole", "run").returncode == 0
    assert call("killed", "kill").returncode == -signal.SIGKILL
    found = call("killed", "resume")
    assert found.returncode == 0, found.stderr.decode()
    whole, again = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "killed"))
    assert torch.equal(whole["x"], again["x"])
    assert whole["bytes"] == again["bytes"]
