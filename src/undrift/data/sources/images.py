"""Images with one label each: MNIST, Fashion-MNIST, EMNIST, CIFAR-10 and CIFAR-100, digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from string import digits as ten_digits

import numpy as np
import torch
from torch import Tensor

from undrift.data.downloads import StandardFile, chosen_folder, fetch, unpack
from undrift.data.federated import FederatedData, federated
from undrift.data.formats import read_cifar_binary, read_cifar_python, read_idx
from undrift.data.part import Part
from undrift.data.partitions import IID, Partition, as_partition
from undrift.utils.errors import UndriftError, require, require_choice

MNIST_SUMS = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        9912422,
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        28881,
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        1648877,
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        4542,
    ),
}
FASHION_SUMS = {
    "train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        26421880,
    ),
    "train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        29515,
    ),
    "t10k-images-idx3-ubyte.gz": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        4422102,
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        5148,
    ),
}
MNIST_URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FASHION_URLS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
EMNIST = StandardFile(
    "emnist/gzip.zip",
    ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
)
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
CIFAR = {
    "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a",
    "cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-python.tar.gz": "md5:eb9058c3a382ffc7106e4002c42a8d85",
}

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]

CLOTHES = [
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
]
THINGS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
MERGED = "CIJKLMOPSUVWXYZ"  # of these letters, EMNIST's merged kinds tell no small from capital
NOT_MERGED = "".join(letter for letter in ascii_lowercase if letter.upper() not in MERGED)
EMNIST_CLASSES = {
    "byclass": ten_digits + ascii_uppercase + ascii_lowercase,
    "bymerge": ten_digits + ascii_uppercase + NOT_MERGED,
    "balanced": ten_digits + ascii_uppercase + NOT_MERGED,
    "letters": ascii_lowercase,
    "digits": ten_digits,
    "mnist": ten_digits,
}


@dataclass(frozen=True)
class Images:
    """Pixels as bytes `[n, channels, height, width]`, and labels `[n]`."""

    x: np.ndarray
    y: np.ndarray


def mnist(
    partition: Partition | str | None = None,
    clients: int = 100,
    seed: int = 0,
    *,
    normalise: str | None = "channels",
    joined: bool = False,
    folder: str | Path | None = None,
    verify: bool = True,
) -> FederatedData:
    """MNIST: 60 000 + 10 000 images of handwritten digits, 28 × 28.

    Parameters
    ----------
    partition
        who gets which images, e.g. `Dirichlet(0.3)` or "dirichlet:0.3"; IID without one
    clients
        their number
    seed
        keys every draw of the partition
    normalise
        inputs of mean 0 and standard deviation 1 over the training images: by "channels" or by
        "features" (each pixel); None leaves them between 0 and 1
    joined
        share out the images of both parts, and set a tenth of each client's aside for test, as
        FedAvg-nonIID and FedProx do; otherwise the standard test part is common to all
    folder
        where the files are, or are downloaded to; without it, `UNDRIFT_DATA` or the user's cache
    verify
        whether files that are there must have the published checksum
    """
    train, test = _mnist_like("mnist", MNIST_URLS, MNIST_SUMS, folder, verify)
    return _shared_out(
        "mnist", train, test, ten_digits, partition, clients, seed, normalise, joined
    )


def fashion_mnist(
    partition: Partition | str | None = None,
    clients: int = 100,
    seed: int = 0,
    *,
    normalise: str | None = "channels",
    joined: bool = False,
    folder: str | Path | None = None,
    verify: bool = True,
) -> FederatedData:
    """Fashion-MNIST: 60 000 + 10 000 images of clothes in 10 classes, 28 × 28.

    The parameters are those of `mnist`.
    """
    train, test = _mnist_like("fashion-mnist", FASHION_URLS, FASHION_SUMS, folder, verify)
    return _shared_out(
        "fashion-mnist", train, test, CLOTHES, partition, clients, seed, normalise, joined
    )


def emnist(
    partition: Partition | str | None = None,
    clients: int = 100,
    seed: int = 0,
    *,
    kind: str = "byclass",
    normalise: str | None = "channels",
    joined: bool = False,
    folder: str | Path | None = None,
    verify: bool = True,
) -> FederatedData:
    """EMNIST: handwritten characters, 28 × 28.

    The other parameters are those of `mnist`; `verify` is about the archive, since its files have
    no published checksums.

    Parameters
    ----------
    kind
        "byclass" (62 classes, 697 932 + 116 323 images), "bymerge", "balanced", "letters" (a to z,
        26 classes), "digits" or "mnist"
    """
    train, test = _emnist(kind, folder, verify)
    return _shared_out(
        f"emnist-{kind}",
        train,
        test,
        EMNIST_CLASSES[kind],
        partition,
        clients,
        seed,
        normalise,
        joined,
    )


def emnist_l(
    partition: Partition | str | None = None,
    clients: int = 100,
    seed: int = 0,
    *,
    normalise: str | None = "channels",
    joined: bool = False,
    folder: str | Path | None = None,
    verify: bool = True,
) -> FederatedData:
    """EMNIST-L of FedDyn and FedProx: the letters a to j of EMNIST, 48 000 + 8 000 images.

    The parameters are those of `mnist`.
    """
    letters = EMNIST_CLASSES["letters"][:10]
    train, test = (
        _first_classes(part, len(letters)) for part in _emnist("letters", folder, verify)
    )
    return _shared_out(
        "emnist-l", train, test, letters, partition, clients, seed, normalise, joined
    )


def cifar10(
    partition: Partition | str | None = None,
    clients: int = 100,
    seed: int = 0,
    *,
    normalise: str | None = "channels",
    joined: bool = False,
    folder: str | Path | None = None,
    verify: bool = True,
) -> FederatedData:
    """CIFAR-10: 50 000 + 10 000 colour images in 10 classes, 32 × 32.

    Reads `cifar-10-batches-py` or `cifar-10-batches-bin`; nothing that a python batch asks for is
    executed. The parameters are those of `mnist`; `verify` is about the archives. For random crops
    and flips: `data.augmented(RandomCrop(4), HorizontalFlip())`.
    """
    root = _cifar_folder(
        "cifar-10", ("cifar-10-batches-py", "cifar-10-batches-bin"), BATCHES, folder, verify
    )
    names = BATCHES[:-1], BATCHES[-1:]
    parts = []
    for files in names:
        if root.name.endswith("-py"):
            read = [read_cifar_python(root / name, "labels") for name in files]
        else:
            batches = [read_cifar_binary(root / f"{name}.bin", 1) for name in files]
            read = [(x, y[:, 0]) for x, y in batches]
        part = Images(np.concatenate([x for x, _ in read]), np.concatenate([y for _, y in read]))
        parts.append(_checked(part, root, len(THINGS)))
    train, test = parts
    return _shared_out("cifar10", train, test, THINGS, partition, clients, seed, normalise, joined)


def cifar100(
    partition: Partition | str | None = None,
    clients: int = 100,
    seed: int = 0,
    *,
    normalise: str | None = "channels",
    joined: bool = False,
    folder: str | Path | None = None,
    verify: bool = True,
) -> FederatedData:
    """CIFAR-100: 50 000 + 10 000 colour images in 100 (fine) classes, 32 × 32.

    Reads `cifar-100-python` or `cifar-100-binary`. The parameters are those of `cifar10`.
    """
    root = _cifar_folder(
        "cifar-100", ("cifar-100-python", "cifar-100-binary"), ("train", "test"), folder, verify
    )
    parts = []
    for name in ("train", "test"):
        if (root / name).is_file():
            x, y = read_cifar_python(root / name, "fine_labels")
        else:
            x, both = read_cifar_binary(root / f"{name}.bin", 2)
            y = both[:, 1]
        parts.append(_checked(Images(x, y), root, 100))
    names = root / "fine_label_names.txt"
    classes = names.read_text().split() if names.is_file() else [str(c) for c in range(100)]
    train, test = parts
    return _shared_out(
        "cifar100", train, test, classes, partition, clients, seed, normalise, joined
    )


def digits(
    partition: Partition | str | None = None,
    clients: int = 20,
    seed: int = 0,
    *,
    normalise: str | None = "channels",
    joined: bool = False,
) -> FederatedData:
    """Scikit-learn's digits: 1797 real images, 8 × 8, that come with that library.

    Every fifth image is for test. The parameters are those of `mnist`.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UndriftError(
            "The digits come with scikit-learn, which is not installed: pip install scikit-learn."
        ) from None
    found = load_digits()
    x = np.round(found.images * (255 / 16)).astype(np.uint8)[:, None]
    y = found.target.astype(np.int64)
    test = np.arange(len(y)) % 5 == 4
    return _shared_out(
        "digits",
        Images(x[~test], y[~test]),
        Images(x[test], y[test]),
        ten_digits,
        partition,
        clients,
        seed,
        normalise,
        joined,
    )


def _shared_out(
    name: str,
    train: Images,
    test: Images,
    classes: Sequence[str],
    partition: Partition | str | None,
    clients: int,
    seed: int,
    normalise: str | None,
    joined: bool,
) -> FederatedData:
    """The images over the clients."""
    rule = as_partition(IID() if partition is None else partition)
    if joined:
        train = Images(np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y]))
    x, y = torch.from_numpy(train.x), torch.from_numpy(train.y)
    split = rule.split(train.y, clients, seed)
    common = Part.common(torch.from_numpy(test.x), torch.from_numpy(test.y))
    data = federated(x, y, split, None if joined else common, f"{name}, {rule}", classes)
    data = data.with_test(0.1, seed) if joined else data
    mean, deviation = torch.zeros(()), torch.ones(())
    if normalise is not None:
        require_choice("normalise", normalise, ("channels", "features"))
        mean, deviation = byte_moments(x[data.train.rows] if joined else x, normalise)
    # (p/255 − mean)/deviation in one multiplication and one addition
    factor, offset = (1 / (255 * deviation)).float(), (-mean / deviation).float()
    return data.with_inputs(lambda pixels: pixels.float().mul_(factor).add_(offset))


def byte_moments(pixels: Tensor, by: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of bytes over 255, from sums that are exact."""
    if by == "features":
        total = pixels.sum(0, keepdim=True, dtype=torch.int64)
        squares = pixels.int().square_().sum(0, keepdim=True, dtype=torch.int64)
        count = len(pixels)
    else:
        values = torch.arange(256)
        shape = (1, -1, 1, 1)
        counts = [torch.bincount(c.reshape(-1), minlength=256) for c in pixels.unbind(1)]
        total = torch.stack([(c * values).sum() for c in counts]).reshape(shape)
        squares = torch.stack([(c * values.square()).sum() for c in counts]).reshape(shape)
        count = pixels[:, 0].numel()
    mean = total.double() / count / 255
    variance = squares.double() / count / 255**2 - mean.square()
    deviation = variance.clamp_min(0).sqrt()
    return mean, torch.where(deviation > 0, deviation, 1.0)


def _checked(images: Images, where: Path, classes: int) -> Images:
    """Images whose labels lie among the classes."""
    bad = images.y[(images.y < 0) | (images.y >= classes)]
    require(
        len(bad) == 0,
        f"{where} has the label {bad[0] if len(bad) else ''}, but there are {classes} classes, "
        f"0 … {classes - 1}.",
    )
    return images


def _first_classes(images: Images, classes: int) -> Images:
    kept = images.y < classes
    return Images(images.x[kept], images.y[kept])


def _read_images(images: Path, labels: Path, classes: int, first: int = 0) -> Images:
    """Images and labels of idx files; the labels of some sets begin at 1."""
    x, y = read_idx(images), read_idx(labels).astype(np.int64) - first
    require(
        x.ndim == 3 and x.shape[1:] == (28, 28) and x.dtype == np.uint8,
        f"{images} has values of shape {list(x.shape)}, but must have images of 28 × 28 bytes.",
    )
    require(
        y.shape == (len(x),),
        f"{labels} has {len(y) if y.ndim else 0} labels for the {len(x)} images of {images.name}.",
    )
    return _checked(Images(x[:, None], y), labels, classes)


def _mnist_like(
    name: str,
    urls: Sequence[str],
    sums: dict[str, tuple[str, int]],
    folder: str | Path | None,
    verify: bool,
) -> tuple[Images, Images]:
    root = chosen_folder(folder)
    found = {}
    for file, (digest, size) in sums.items():
        addresses = tuple(url + file for url in urls)
        standard = StandardFile(f"{name}/{file}", addresses, f"sha256:{digest}", size)
        found[file] = fetch(standard, root, verify)
    paths = list(found.values())
    return _read_images(paths[0], paths[1], 10), _read_images(paths[2], paths[3], 10)


def _emnist(kind: str, folder: str | Path | None, verify: bool) -> tuple[Images, Images]:
    require_choice("kind", kind, EMNIST_CLASSES)
    root = chosen_folder(folder)
    names = [
        f"emnist-{kind}-{part}-{what}-ubyte.gz"
        for part in ("train", "test")
        for what in ("images-idx3", "labels-idx1")
    ]
    places = [root / "emnist", root / "emnist" / "gzip", root / "emnist" / "unpacked" / "gzip"]
    place = next((p for p in places if all((p / name).is_file() for name in names)), None)
    if place is None:
        place = unpack(fetch(EMNIST, root, verify), root / "emnist" / "unpacked") / "gzip"
    first = 1 if kind == "letters" else 0
    classes = len(EMNIST_CLASSES[kind])
    parts = [
        _read_images(place / images, place / labels, classes, first)
        for images, labels in (names[:2], names[2:])
    ]
    # The published images lie on their side: rows and columns are exchanged.
    train, test = (Images(part.x.swapaxes(-1, -2).copy(), part.y) for part in parts)
    return train, test


def _cifar_folder(
    name: str, inner: tuple[str, str], files: Sequence[str], folder: str | Path | None, verify: bool
) -> Path:
    """The folder with all python or binary batches, unpacked or downloaded if need be."""
    root = chosen_folder(folder)
    archives = {f"{name}-python": inner[0], f"{name}-binary": inner[1]}
    for archive, batches in archives.items():
        ending = ".bin" if archive.endswith("binary") else ""
        for place in (root / batches, root / f"{archive}-unpacked" / batches):
            if all((place / f"{file}{ending}").is_file() for file in files):
                return place
    there = [a for a in archives if (root / f"{a}.tar.gz").is_file()]
    archive = there[0] if there else f"{name}-binary"
    file = f"{archive}.tar.gz"
    packed = fetch(StandardFile(file, (CIFAR_URL + file,), CIFAR[file]), root, verify)
    return unpack(packed, root / f"{archive}-unpacked") / archives[archive]
