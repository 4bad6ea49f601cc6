"""Own data, own model: a folder with a CSV file per client, from nothing to a report.

    python examples/own_data.py

Run it where the folder examples is. The files' names are the clients' names; every column but the
target is an input. For data of your own change the folder, the target and the model.
"""

from torch import nn

import undrift as ud


class Net(nn.Module):
    """Any module: it takes a batch of inputs and gives a score per class."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        """The scores of a batch."""
        return self.layers(x)


data = ud.data.FederatedData.from_folder("examples/hospitals", target="readmitted")
data = data.with_test(0.25).normalised()
local = ud.SGD(lr=0.1, batch_size=20, epochs=2)
result = ud.train(ud.FedDyn(alpha=0.1), model=Net(), data=data, local=local, rounds=30)
print(result.summary())
result.report("hospitals.html")
