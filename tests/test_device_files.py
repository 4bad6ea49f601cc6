"""Devices and windows from CSV files, and the errors for wrong files."""

import math

import numpy as np
import pytest

from fleets import MANY, refuses, roster
from undrift.devices import DeviceFile


@pytest.fixture
def write(tmp_path):
    def written(text, name="devices.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_a_file_gives_each_client_its_row(write):
    path = write("speed, client ,down,lifetime\n2,1,,\n3,ann,100,50\n\n4,unused,,\n")
    fleet = DeviceFile(path, unit="samples").fleet(roster([1, "ann"]), 6)
    assert fleet.speed.tolist() == [2, 3]
    assert fleet.down.tolist() == [math.inf, 100]
    assert fleet.gone_at.tolist() == [math.inf, 50]
    assert fleet.up.tolist() == [math.inf] * 2
    for name in ("latency", "jitter", "dropout", "damage"):
        assert getattr(fleet, name).tolist() == [0, 0]
    assert (fleet.unit, fleet.seed, fleet.classes) == ("samples", 6, None)
    assert fleet.windows.always


def test_a_byte_order_mark_is_not_part_of_a_column_name(write):
    assert DeviceFile(str(write("\ufeffclient,speed\n0,2\n"))).fleet(roster(1), 0).speed == [2]


def test_windows_of_a_file_make_clients_available(write):
    path = write("client,speed\n0,1\n1,1\n2,1\n")
    windows = write("client,to,from\n0,6,4\n1,3,0\n0,2,1\n", "windows.csv")
    fleet = DeviceFile(path, windows=windows, repeat=10).fleet(roster(3), 0)
    assert fleet.available(5.0).tolist() == [True, False, False]
    assert fleet.next_available(6.0).tolist() == [11, 10, math.inf]
    assert fleet.leaves(np.array([0, 1]), 11.0).tolist() == [12, 13]
    once = DeviceFile(path, windows=windows).fleet(roster(3), 0)
    assert once.next_available(6.0).tolist() == [math.inf] * 3


def test_clients_draw_their_device_from_a_file_with_its_windows(write):
    path = write("device,speed\nold,1\nnew,4\n")
    windows = write("device,from,to\nold,0,10\nnew,10,20\n", "windows.csv")
    file = DeviceFile(path, windows=windows, match="random")
    fleet = file.fleet(MANY, 0)
    old = fleet.speed == 1
    assert old.mean() == pytest.approx(0.5, abs=0.02) and set(fleet.speed) == {1, 4}
    assert (fleet.available(5.0) == old).all() and (fleet.available(15.0) == ~old).all()
    few = roster([5, "new one", 9])
    assert file.fleet(few, 0).speed[:2].tolist() == fleet.speed[[5, 9]].tolist()
    assert (file.fleet(MANY, 1).speed != fleet.speed).any()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "devices.csv, line 1 has no column 'client' (or 'device')."),
        ("speed\n1\n", "devices.csv, line 1 has no column 'client' (or 'device')."),
        ("client,down\n0,1\n", "devices.csv, line 1 has no column 'speed'."),
        ("client,speed,latence\n0,1,1\n", "devices.csv, line 1: a column is 'latence', but must"),
        ("client,device,speed\n0,1,1\n", "devices.csv, line 1: a column is 'device', but must"),
        ("client,speed,speed\n0,1,1\n", "devices.csv, line 1 has the column 'speed' twice."),
        ("client,speed\n", "devices.csv has no rows below its header."),
        ("client,speed\n0,1\n1\n", "devices.csv, line 3 has 1 cells, but the header has 2."),
        ("client,speed\n0,1\n,2\n", "devices.csv, line 3 has no value in column 'client'."),
        ("client,speed\n0,1\n1,\n", "devices.csv, line 3 has no speed of '1'."),
        ("client,speed\n0,fast\n", "devices.csv, line 2 has 'fast' in column 'speed', which must"),
        ("client,speed\n0,nan\n", "devices.csv, line 2: speed is nan, but must be a number above"),
        ("client,speed\n0,-1\n", "devices.csv, line 2: speed is -1.0, but must be above 0."),
        (
            "client,speed,damage\n0,1,2\n",
            "devices.csv, line 2: damage is 2.0, but must be at least 0 and at most 1.",
        ),
        ("client,speed\n0,1\n\n0,2\n", "devices.csv, line 4 describes '0' again, after "),
        ("client,speed\n0,1\n", "devices.csv has no row for client 1; match='random' takes"),
        ("client,speed\n0,1\x00\n", "devices.csv"),
    ],
)
def test_a_wrong_file_of_devices_is_refused_with_its_line(write, text, sentence):
    path = write(text)
    refuses(sentence, lambda: DeviceFile(path).fleet(roster(2), 0))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("client,from\n0,1\n", "windows.csv, line 1 has no column 'to'."),
        ("client,from,to,x\n0,1,2,3\n", "windows.csv, line 1: a column is 'x', but must be one of"),
        ("client,from,to\n5,1,2\n", "windows.csv, line 2 names '5', which has no row in "),
        ("client,from,to\n0,,2\n", "windows.csv, line 2 has '' in column 'from', which must be a"),
        ("client,from,to\n0,-1,2\n", "windows.csv, line 2: from is -1.0, but must be at least 0."),
        (
            "client,from,to\n0,3,2\n",
            "windows.csv, line 2: to is 2.0, but must be above 3 and at most 9.",
        ),
        (
            "client,from,to\n0,3,10\n",
            "windows.csv, line 2: to is 10.0, but must be above 3 and at most 9.",
        ),
        ("client,from,to\n0,3,7\n1,0,9\n0,1,4\n", "The windows of '0' overlap: "),
    ],
)
def test_a_wrong_file_of_windows_is_refused_with_its_line(write, text, sentence):
    file = DeviceFile(
        write("client,speed\n0,1\n1,1\n"), windows=write(text, "windows.csv"), repeat=9
    )
    refuses(sentence, lambda: file.fleet(roster(2), 0))


def test_files_that_cannot_be_read_are_named(write, tmp_path):
    missing = tmp_path / "none.csv"
    refuses(f"{missing} cannot be read", lambda: DeviceFile(missing).fleet(roster(1), 0))
    refuses(f"{tmp_path} cannot be read", lambda: DeviceFile(tmp_path).fleet(roster(1), 0))
    path = write("client,speed\n0,1\n")
    file = DeviceFile(path, windows=missing)
    refuses(f"{missing} cannot be read", lambda: file.fleet(roster(1), 0))
    path.write_bytes(b"client,speed\n\xff,1\n")
    refuses(f"{path} cannot be read", lambda: DeviceFile(path).fleet(roster(1), 0))
