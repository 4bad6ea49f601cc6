"""Images with one label each: MNIST, Fashion-MNIST, EMNIST, CIFAR-10, CIFAR-100 and digits.

Each source reads its files into an `ImageSet`, which then shares the images out over the clients.
"""

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
from undrift.data.partitions import IID, Assign, Partition, as_partition
from undrift.utils.errors import UndriftError, require, require_choice

MNIST_URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST_FILES = {
    "train-images": ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422),
    "train-labels": ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881),
    "t10k-images": ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877),
    "t10k-labels": ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542),
}
"""The SHA-256 digest and the size in bytes of each file."""
FASHION_URLS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
FASHION_FILES = {
    "train-images": ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26421880),
    "train-labels": ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29515),
    "t10k-images": ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4422102),
    "t10k-labels": ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5148),
}
IDX_ENDINGS = {"images": "idx3-ubyte.gz", "labels": "idx1-ubyte.gz"}
EMNIST_ARCHIVE = StandardFile(
    "emnist/gzip.zip",
    ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
)
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
CIFAR_CHECKSUMS = {
    "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a",
    "cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-python.tar.gz": "md5:eb9058c3a382ffc7106e4002c42a8d85",
}

FASHION_CLASSES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "boot"),
)
CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
MERGED = "CIJKLMOPSUVWXYZ"
"""Letters whose capital and small forms are one class in EMNIST's "bymerge" and "balanced"."""
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


@dataclass(frozen=True)
class ImageSet:
    """The training and test images of a data set, before they are shared out."""

    name: str
    train: Images
    test: Images
    classes: Sequence[str]

    def shared_out(
        self,
        partition: Partition | Assign | str | None,
        clients: int,
        seed: int,
        normalise: str | None,
        joined: bool,
    ) -> FederatedData:
        """Share the images out over clients; the parameters are explained in `mnist`."""
        rule = as_partition(IID() if partition is None else partition)
        train, test = self.train, self.test
        if joined:
            train = Images(np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y]))
        x, y = torch.from_numpy(train.x), torch.from_numpy(train.y)
        split = rule.split(train.y, clients, seed)
        common = Part.common(torch.from_numpy(test.x), torch.from_numpy(test.y))
        name = f"{self.name}, {rule}"
        data = federated(x, y, split, None if joined else common, name, self.classes)
        data = data.with_test(0.1, seed) if joined else data
        mean, deviation = torch.zeros(()), torch.ones(())
        if normalise is not None:
            require_choice("normalise", normalise, ("channels", "features"))
            mean, deviation = byte_moments(x[data.train.rows] if joined else x, normalise)
        # (p/255 − mean)/deviation in one multiplication and one addition
        factor, offset = (1 / (255 * deviation)).float(), (-mean / deviation).float()
        return data.with_inputs(lambda pixels: pixels.float().mul_(factor).add_(offset))


@dataclass(frozen=True)
class CifarFiles:
    """The file names of CIFAR-10 or CIFAR-100, and where a label is in them."""

    name: str
    python_folder: str
    binary_folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_key: str
    """the labels' key in a python batch"""
    label_bytes: int
    """bytes before the pixels of an image in a binary batch; the last of them is the label"""
    classes: int


CIFAR10 = CifarFiles(
    name="cifar-10",
    python_folder="cifar-10-batches-py",
    binary_folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    label_key="labels",
    label_bytes=1,
    classes=10,
)
CIFAR100 = CifarFiles(
    name="cifar-100",
    python_folder="cifar-100-python",
    binary_folder="cifar-100-binary",
    train=("train",),
    test=("test",),
    label_key="fine_labels",
    label_bytes=2,
    classes=100,
)


def mnist(
    partition: Partition | Assign | str | None = None,
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
        the rule that shares the images out, e.g. `Dirichlet(0.3)`, "dirichlet:0.3" or a function
        (see `Partition`); by default `IID()`
    clients
        number of clients
    seed
        seed of the partition
    normalise
        scales inputs to mean 0 and standard deviation 1 over the training images: by "channels" or
        by "features" (each pixel); None leaves them between 0 and 1
    joined
        whether to share out the images of both parts and hold out a tenth of each client's for
        test, as FedAvg-nonIID and FedProx do; otherwise the standard test part is common to all
        clients
    folder
        the folder of the files, to which missing ones are downloaded; by default `UNDRIFT_DATA`, or
        the user's cache
    verify
        whether files that exist must have the published checksum
    """
    images = _mnist_like("mnist", MNIST_URLS, MNIST_FILES, ten_digits, folder, verify)
    return images.shared_out(partition, clients, seed, normalise, joined)


def fashion_mnist(
    partition: Partition | Assign | str | None = None,
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
    files = FASHION_URLS, FASHION_FILES
    images = _mnist_like("fashion-mnist", *files, FASHION_CLASSES, folder, verify)
    return images.shared_out(partition, clients, seed, normalise, joined)


def emnist(
    partition: Partition | Assign | str | None = None,
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

    The other parameters are those of `mnist`; `verify` applies to the archive, because its files
    have no published checksums.

    Parameters
    ----------
    kind
        "byclass" (62 classes, 697 932 + 116 323 images), "bymerge", "balanced", "letters" (a to z,
        26 classes), "digits" or "mnist"
    """
    return _emnist(kind, folder, verify).shared_out(partition, clients, seed, normalise, joined)


def emnist_l(
    partition: Partition | Assign | str | None = None,
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
    letters = _emnist("letters", folder, verify)
    train, test = (_first_classes(part, 10) for part in (letters.train, letters.test))
    images = ImageSet("emnist-l", train, test, letters.classes[:10])
    return images.shared_out(partition, clients, seed, normalise, joined)


def cifar10(
    partition: Partition | Assign | str | None = None,
    clients: int = 100,
    seed: int = 0,
    *,
    normalise: str | None = "channels",
    joined: bool = False,
    folder: str | Path | None = None,
    verify: bool = True,
) -> FederatedData:
    """CIFAR-10: 50 000 + 10 000 colour images in 10 classes, 32 × 32.

    Reads `cifar-10-batches-py` or `cifar-10-batches-bin`; no code in a python batch is executed.
    The parameters are those of `mnist`; `verify` applies to the archives. For random crops and
    flips use `data.augmented(RandomCrop(4), HorizontalFlip())`.
    """
    root = _cifar_folder(CIFAR10, folder, verify)
    images = ImageSet("cifar10", *_cifar_images(CIFAR10, root), CIFAR10_CLASSES)
    return images.shared_out(partition, clients, seed, normalise, joined)


def cifar100(
    partition: Partition | Assign | str | None = None,
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
    root = _cifar_folder(CIFAR100, folder, verify)
    names = root / "fine_label_names.txt"
    classes = names.read_text().split() if names.is_file() else [str(c) for c in range(100)]
    images = ImageSet("cifar100", *_cifar_images(CIFAR100, root), classes)
    return images.shared_out(partition, clients, seed, normalise, joined)


def digits(
    partition: Partition | Assign | str | None = None,
    clients: int = 20,
    seed: int = 0,
    *,
    normalise: str | None = "channels",
    joined: bool = False,
) -> FederatedData:
    """Scikit-learn's digits: 1797 real images, 8 × 8, that are part of that library.

    Every fifth image is a test image. The parameters are those of `mnist`.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UndriftError(
            "The digits are part of scikit-learn, which is not installed: pip install scikit-learn."
        ) from None
    found = load_digits()
    x = np.round(found.images * (255 / 16)).astype(np.uint8)[:, None]
    y = found.target.astype(np.int64)
    test = np.arange(len(y)) % 5 == 4
    parts = Images(x[~test], y[~test]), Images(x[test], y[test])
    return ImageSet("digits", *parts, ten_digits).shared_out(
        partition, clients, seed, normalise, joined
    )


def byte_moments(pixels: Tensor, by: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of pixels divided by 255, from exact integer sums."""
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
    """The images, after a check that every label is one of the classes."""
    bad = images.y[(images.y < 0) | (images.y >= classes)]
    require(
        len(bad) == 0,
        f"{where} has the label {bad[0] if len(bad) else ''}, but there are {classes} classes, "
        f"0 … {classes - 1}.",
    )
    return images


def _first_classes(images: Images, classes: int) -> Images:
    """The images of the classes 0 … classes − 1."""
    kept = images.y < classes
    return Images(images.x[kept], images.y[kept])


def _read_images(images: Path, labels: Path, classes: int, first_label: int = 0) -> Images:
    """Images of 28 × 28 and their labels, from idx files."""
    x, y = read_idx(images), read_idx(labels).astype(np.int64) - first_label
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
    files: dict[str, tuple[str, int]],
    classes: Sequence[str],
    folder: str | Path | None,
    verify: bool,
) -> ImageSet:
    """A data set in MNIST's four files, downloaded if they are missing."""
    root = chosen_folder(folder)
    paths = []
    for what, (digest, size_bytes) in files.items():
        file = f"{what}-{IDX_ENDINGS[what.partition('-')[2]]}"
        addresses = tuple(url + file for url in urls)
        standard = StandardFile(f"{name}/{file}", addresses, f"sha256:{digest}", size_bytes)
        paths.append(fetch(standard, root, verify))
    train = _read_images(paths[0], paths[1], len(classes))
    test = _read_images(paths[2], paths[3], len(classes))
    return ImageSet(name, train, test, classes)


def _emnist(kind: str, folder: str | Path | None, verify: bool) -> ImageSet:
    """One kind of EMNIST, unpacked or downloaded if its files are missing."""
    require_choice("kind", kind, EMNIST_CLASSES)
    root = chosen_folder(folder)
    names = [
        f"emnist-{kind}-{part}-{what}-{ending}"
        for part in ("train", "test")
        for what, ending in IDX_ENDINGS.items()
    ]
    places = [root / "emnist", root / "emnist" / "gzip", root / "emnist" / "unpacked" / "gzip"]
    place = next((p for p in places if all((p / name).is_file() for name in names)), None)
    if place is None:
        place = unpack(fetch(EMNIST_ARCHIVE, root, verify), root / "emnist" / "unpacked") / "gzip"
    classes = EMNIST_CLASSES[kind]
    first_label = 1 if kind == "letters" else 0
    parts = [
        _read_images(place / images, place / labels, len(classes), first_label)
        for images, labels in (names[:2], names[2:])
    ]
    # The published images are transposed: their rows are columns.
    train, test = (Images(part.x.swapaxes(-1, -2).copy(), part.y) for part in parts)
    return ImageSet(f"emnist-{kind}", train, test, classes)


def _cifar_folder(files: CifarFiles, folder: str | Path | None, verify: bool) -> Path:
    """The folder with all python or all binary batches, unpacked or downloaded if missing."""
    root = chosen_folder(folder)
    archives = {
        f"{files.name}-python": files.python_folder,
        f"{files.name}-binary": files.binary_folder,
    }
    for archive, batches in archives.items():
        ending = ".bin" if archive.endswith("binary") else ""
        for place in (root / batches, root / f"{archive}-unpacked" / batches):
            if all((place / f"{name}{ending}").is_file() for name in files.train + files.test):
                return place
    packed = [a for a in archives if (root / f"{a}.tar.gz").is_file()]
    archive = packed[0] if packed else f"{files.name}-binary"
    file = f"{archive}.tar.gz"
    path = fetch(StandardFile(file, (CIFAR_URL + file,), CIFAR_CHECKSUMS[file]), root, verify)
    return unpack(path, root / f"{archive}-unpacked") / archives[archive]


def _cifar_images(files: CifarFiles, root: Path) -> tuple[Images, Images]:
    """The training and the test images in a folder of python or binary batches."""
    parts = []
    for names in (files.train, files.test):
        batches = [_cifar_batch(files, root, name) for name in names]
        x, y = (np.concatenate(values) for values in zip(*batches, strict=True))
        parts.append(_checked(Images(x, y), root, files.classes))
    return parts[0], parts[1]


def _cifar_batch(files: CifarFiles, root: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    if root.name == files.python_folder:
        return read_cifar_python(root / name, files.label_key)
    x, labels = read_cifar_binary(root / f"{name}.bin", files.label_bytes)
    return x, labels[:, -1]
