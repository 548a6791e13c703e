"""Facts about the original files: addresses, checksums and numbers of samples.

A download is checked as a whole. Files that already exist may be compressed differently, so they are checked by the
checksum of the bytes inside where it is known, and by shapes and counts elsewhere.
"""

from tacit.data.sources.fetch import Remote

# Training and test samples.
COUNTS = {
    "mnist": (60_000, 10_000),
    "fashion-mnist": (60_000, 10_000),
    "emnist-balanced": (112_800, 18_800),
    "svhn": (73_257, 26_032),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "tiny-imagenet": (100_000, 10_000),
}

# Checksums of the bytes that are read, after decompression.
SUMS = {
    "MNIST/raw/train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "MNIST/raw/train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "MNIST/raw/t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "MNIST/raw/t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "FashionMNIST/raw/train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "FashionMNIST/raw/train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "FashionMNIST/raw/t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "FashionMNIST/raw/t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "EMNIST/raw/gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e",
    "SVHN/train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "SVHN/test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-batches-bin/data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "cifar-10-batches-bin/data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "cifar-10-batches-bin/data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "cifar-10-batches-bin/data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "cifar-10-batches-bin/data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "cifar-10-batches-bin/test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
    "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "cifar-100-python/meta": "7973b15100ade9c7d40fb424638fde48",
    "tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de",
    "shakespeare/tinyshakespeare_input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
}

_DIGITS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_CLOTHES = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
_HOUSES = "http://ufldl.stanford.edu/housenumbers/"
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_PLAYS = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"

# By their place below the data folder; checksums of the whole files.
REMOTES = {
    remote.place: remote
    for remote in (
        *(
            Remote(f"{folder}/{name}", tuple(host + name for host in hosts), checksum)
            for folder, hosts, name, checksum in (
                ("MNIST/raw", _DIGITS, "train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                ("MNIST/raw", _DIGITS, "train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
                ("MNIST/raw", _DIGITS, "t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
                ("MNIST/raw", _DIGITS, "t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
                ("FashionMNIST/raw", _CLOTHES, "train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                ("FashionMNIST/raw", _CLOTHES, "train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
                ("FashionMNIST/raw", _CLOTHES, "t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
                ("FashionMNIST/raw", _CLOTHES, "t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
                ("SVHN", (_HOUSES,), "train_32x32.mat", SUMS["SVHN/train_32x32.mat"]),
                ("SVHN", (_HOUSES,), "test_32x32.mat", SUMS["SVHN/test_32x32.mat"]),
            )
        ),
        Remote(
            "EMNIST/raw/gzip.zip",
            ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
            SUMS["EMNIST/raw/gzip.zip"],
        ),
        Remote("cifar-10-python.tar.gz", (f"{_TORONTO}cifar-10-python.tar.gz",), "c58f30108f718f92721af3b95e74349a"),
        Remote("cifar-100-python.tar.gz", (f"{_TORONTO}cifar-100-python.tar.gz",), "eb9058c3a382ffc7106e4002c42a8d85"),
        Remote(
            "tiny-imagenet-200.zip",
            ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            SUMS["tiny-imagenet-200.zip"],
        ),
        Remote("shakespeare/tinyshakespeare_input.txt", (_PLAYS,), SUMS["shakespeare/tinyshakespeare_input.txt"]),
    )
}
