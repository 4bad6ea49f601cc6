"""Measure the speed of the virtual clock without any training, in events per second.

    python benchmarks/clock.py [--clients 100000] [--events 1000000] [--json]

An event is the trip of one client. Times are CPU seconds. Asynchronous: trips one after the other
in the order of virtual time. In rounds: all clients of a cohort together.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch

from undrift.core.clients import Roster
from undrift.devices import Devices, Duty, Fleet, LogNormal
from undrift.loops.event_queue import Flights
from undrift.loops.paces import FirstToRespond

BYTES = 1e6
STEPS = 50.0
KINDS = {
    "speeds only": Devices(speed=LogNormal(10, 0.8)),
    "jitter, dropout, transfers": Devices(
        speed=LogNormal(10, 0.8),
        down=LogNormal(1e6, 1),
        up=LogNormal(3e5, 1),
        latency=0.1,
        jitter=0.3,
        dropout=0.05,
    ),
    "… and unavailable at times": Devices(
        speed=LogNormal(10, 0.8),
        down=LogNormal(1e6, 1),
        up=LogNormal(3e5, 1),
        latency=0.1,
        jitter=0.3,
        dropout=0.05,
        availability=Duty(period=86400, share=0.3),
    ),
}


def everyone(fleet: Fleet, events: int) -> int:
    """Keep every client at work; each starts again when it is back."""
    flights = Flights(fleet, fleet.reading(BYTES), fleet.sending(BYTES))
    for k in range(len(fleet)):
        if flights.is_available(k):
            flights.launch(k, STEPS)
        else:
            flights.wake(k)
    for _ in range(events):
        flight = flights.land()
        flights.free(flight.k)
        if flights.is_available(flight.k):
            flights.launch(flight.k, STEPS)
        else:
            flights.wake(flight.k)
    return events


def some(fleet: Fleet, events: int) -> int:
    """Keep a hundredth of the clients at work, drawn at random each time."""
    flights = Flights(fleet, fleet.reading(BYTES), fleet.sending(BYTES))
    for _ in range(len(fleet) // 100):
        k = flights.pick()
        assert k is not None
        flights.launch(k, STEPS)
    for _ in range(events):
        flight = flights.land()
        flights.free(flight.k)
        k = flights.pick()
        assert k is not None
        flights.launch(k, STEPS)
    return events


def rounds(fleet: Fleet, events: int) -> int:
    """Do rounds with all available clients, of which the first half to respond is used."""
    now, done, number = 0.0, 0, 0
    reading, sending = fleet.reading(BYTES), fleet.sending(BYTES)
    while done < events:
        who = np.flatnonzero(fleet.available(now))
        trips = fleet.trips(who, STEPS, now, reading[who], sending[who], number)
        pace = FirstToRespond(max(1, len(who) // 2))
        _, now = pace.closes(now, trips.end, trips.outcome == "arrives")
        done += len(who)
        number += 1
    return done


WAYS: dict[str, Callable[[Fleet, int], int]] = {
    "asynchronous, everyone": everyone,
    "asynchronous, 1 % at once": some,
    "rounds, first half": rounds,
}


def main() -> None:
    """Time every kind of training on every kind of devices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    roster = Roster(list(range(options.clients)), torch.ones(options.clients))
    found = []
    for devices, profile in KINDS.items():
        fleet = profile.fleet(roster, 0)
        for way, run in WAYS.items():
            began = time.process_time()
            events = run(fleet, options.events)
            per_second = events / (time.process_time() - began)
            found.append({"devices": devices, "way": way, "events_per_second": per_second})
            if not options.json:
                print(f"{devices:28} {way:26} {per_second:12,.0f} events/s", flush=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
