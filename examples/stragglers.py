"""Stragglers: wait for them, leave when time is up, or take replies in as they arrive.

    python examples/stragglers.py

With devices there is a virtual clock, so methods are compared at equal time and not only at equal
rounds. Nothing sleeps: an hour of the clients' time takes a second here.
"""

import undrift as ud


def main(rounds: int = 60) -> ud.Comparison:
    """Compare four ways on the same slow and unreliable devices."""
    devices = ud.Devices(
        speed=ud.devices.LogNormal(20.0, 0.8),  # steps a second: some are ten times as slow
        down=1e6,  # bytes a second
        up=2e5,
        latency=0.1,
        dropout=0.02,  # the probability to fail in mid-round
    )
    results = ud.compare(
        {
            "wait for all": ud.FedAvg(),
            "2 s, FedAvg": ud.FedAvg(),  # who did more steps counts for more
            "2 s, FedNova": ud.FedNova(),  # and here it does not
            "as they arrive": ud.FedBuff(buffer=5),
        },
        model=ud.models.logistic(60, 10),
        data=ud.data.synthetic(alpha=1, beta=1, clients=30, seed=0, most=200),
        local=ud.SGD(lr=0.03, batch_size=10, epochs=3),
        rounds=rounds,
        cohort=15,
        objective="clients",
        devices=devices,
        pace={
            "wait for all": ud.WaitForAll(),
            "2 s, FedAvg": ud.Deadline(2.0),
            "2 s, FedNova": ud.Deadline(2.0),
            "as they arrive": ud.AsTheyArrive(buffer=5),
        },
    )
    print(results.summary())
    results.plot("time.png", metrics=["objective", "test_accuracy"], against="virtual_seconds")
    results["wait for all"].timeline("waiting.png")  # who worked when
    results["as they arrive"].timeline("arriving.png")
    return results


if __name__ == "__main__":
    main()
