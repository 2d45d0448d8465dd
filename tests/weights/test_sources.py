"""Files of every format: the same names, shapes and numbers; never executed; damage is told."""

import argparse
import collections
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from evoattn import WeightsError
from evoattn.weights import af3_records
from evoattn.weights.checkpoints import choose
from evoattn.weights.sources import Source, open_source

ARRAYS = {
    "a/b//weights": torch.randn(2, 3, 4),
    "a/b//bias": torch.arange(5),
    "scalar//x": torch.tensor(2.5, dtype=torch.float64),
    "none//x": torch.empty(0, 3),
    "half//x": torch.randn(3).half(),
}


def save_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, **{name: x.numpy() for name, x in ARRAYS.items()})


def save_compressed_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **{name: x.numpy() for name, x in ARRAYS.items()})


def save_torch(path: Path) -> None:
    torch.save(ARRAYS, path)


def save_old_torch(path: Path) -> None:
    torch.save(ARRAYS, path, _use_new_zipfile_serialization=False)


def save_safetensors(path: Path) -> None:
    save_file(ARRAYS, path)


def save_records(path: Path) -> None:
    """AlphaFold 3's format, written by hand."""
    data = b""
    for name, x in ARRAYS.items():
        scope, parameter = (word.encode() for word in name.split("//"))
        array = x.numpy()
        dtype = str(array.dtype).encode()
        lengths = struct.pack("<5i", len(scope), len(parameter), len(dtype), array.ndim, array.nbytes)
        data += lengths + scope + parameter + dtype + struct.pack(f"<{array.ndim}i", *array.shape) + array.tobytes()
    path.with_name("weights.bin").write_bytes(data)
    path.with_name("weights.bin").rename(path)


def save_compressed_records(path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    save_records(path)
    data = path.read_bytes()
    frames = [zstandard.ZstdCompressor().compress(part) for part in (data[:70], data[70:])]  # a file of several frames
    path.write_bytes(b"".join(frames))


SAVERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "npz": ("x.npz", save_npz),
    "npz, compressed": ("x.npz", save_compressed_npz),
    "torch": ("x.pt", save_torch),
    "torch, old": ("x.pt", save_old_torch),
    "safetensors": ("x.safetensors", save_safetensors),
    "records": ("x.bin", save_records),
    "records, compressed": ("x.bin.zst", save_compressed_records),
}


def everything(source: Source) -> dict[str, Tensor]:
    return dict(source.read(source.shapes))


@pytest.mark.parametrize("saver", SAVERS)
def test_every_format_gives_the_same(saver: str, tmp_path: Path) -> None:
    name, save = SAVERS[saver]
    save(tmp_path / name)
    source = open_source(tmp_path / name)
    assert source.shapes == {key: tuple(x.shape) for key, x in ARRAYS.items()}
    source.check(source.shapes)
    read = everything(source)
    assert read.keys() == ARRAYS.keys()
    assert all(torch.equal(read[key], x) and read[key].dtype == x.dtype for key, x in ARRAYS.items())
    [(key, some)] = source.read(["a/b//bias"])
    assert key == "a/b//bias" and torch.equal(some, ARRAYS[key])


@pytest.mark.parametrize("saver", SAVERS)
def test_the_content_tells_the_format(saver: str, tmp_path: Path) -> None:
    name, save = SAVERS[saver]
    path = tmp_path / ("x.dat" if name != "x.bin" else name)  # uncompressed records begin with nothing that tells them
    save(path)
    assert everything(open_source(str(path))).keys() == ARRAYS.keys()


@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.97])
def test_a_truncated_file_is_told(saver: str, share: float, tmp_path: Path) -> None:
    name, save = SAVERS[saver]
    path = tmp_path / name
    save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(WeightsError, match=r"x\.\S+ cannot be read as .*get it again"):
        source = open_source(path)
        source.check(source.shapes)
        everything(source)


def test_a_damaged_npz_is_told_before_anything_is_read(tmp_path: Path) -> None:
    array = np.random.rand(300, 300)
    np.savez(tmp_path / "x.npz", **{"a/b//weights": array})
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[data.find(array.tobytes()) + 500_000] ^= 1  # one bit of one number
    (tmp_path / "x.npz").write_bytes(data)
    source = open_source(tmp_path / "x.npz")
    with pytest.raises(WeightsError, match=r"x\.npz is damaged at a/b//weights: .*CRC.*get it again"):
        source.check(source.shapes)


def test_records_of_a_dtype_that_numpy_has_not(tmp_path: Path) -> None:
    arrays = {"scope/of//x": torch.randn(2, 3).bfloat16(), "meta//id": torch.tensor([1, 2], dtype=torch.uint8)}
    for compressed in (False, True):
        af3_records.write(tmp_path / "x.bin", iter(arrays.items()), compressed=compressed)
        read = everything(open_source(tmp_path / "x.bin"))
        assert all(torch.equal(read[name], x) for name, x in arrays.items())


def split(folder: Path, name: str, cuts: tuple[int, ...] = (11, 90)) -> list[Path]:
    """AlphaFold 3's records in files called after `name`, cut anywhere: in the middle of a header, and of data."""
    (save_compressed_records if ".zst" in name else save_records)(folder / "whole")
    data = (folder / "whole").read_bytes()
    (folder / "whole").unlink()
    borders = [0, *cuts, len(data)]
    files = [folder / name.format(number) for number in range(len(borders) - 1)]
    for file, begin, end in zip(files, borders, borders[1:], strict=False):
        file.write_bytes(data[begin:end])
    return files


@pytest.mark.parametrize("name", ["af3.{}.bin.zst", "af3.bin.zst.{}", "af3.{}.bin", "af3.bin.{}"])
def test_records_in_several_files(name: str, tmp_path: Path) -> None:
    """Given by any of them, by their folder, or by the name without the number."""
    files = split(tmp_path, name)
    for given in (*files, tmp_path, tmp_path / name.replace(".{}", "")):
        source = open_source(given)
        assert source.kind == "AlphaFold 3 records in 3 files" and source.name == str(given)
        read = everything(source)
        assert read.keys() == ARRAYS.keys() and all(torch.equal(read[key], x) for key, x in ARRAYS.items())


def test_many_parts_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    split(tmp_path, "af3.{}.bin", tuple(range(20, 240, 20)))  # 10 comes after 9, not after 1
    assert everything(open_source(tmp_path)).keys() == ARRAYS.keys()


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    files = split(tmp_path, "af3.{}.bin.zst")
    files[1].unlink()
    with pytest.raises(WeightsError, match=r"missing: there are af3\.0\.bin\.zst, af3\.2\.bin\.zst, but not 1\."):
        open_source(files[0])
    split(tmp_path, "af3.{}.bin.zst")[2].unlink()  # the last one cannot be missed by its number
    with pytest.raises(WeightsError, match=r"cannot be read as AlphaFold 3's records: .*the file ends|zstandard"):
        open_source(tmp_path)


def test_a_whole_file_is_not_joined_with_parts_beside_it(tmp_path: Path) -> None:
    split(tmp_path, "af3.{}.bin.zst")
    save_compressed_records(tmp_path / "af3.bin.zst")
    assert open_source(tmp_path / "af3.bin.zst").kind == open_source(tmp_path).kind == "AlphaFold 3 records"
    save_compressed_records(tmp_path / "other.bin.zst")
    with pytest.raises(WeightsError, match=r"several models: af3\.bin\.zst, other\.bin\.zst; give the path of one"):
        open_source(tmp_path)


def test_numbered_torch_checkpoints_are_each_their_own(tmp_path: Path) -> None:
    for number in (3, 7):
        torch.save({"x": torch.full((2,), float(number))}, tmp_path / f"epoch.{number}.bin")
    assert everything(open_source(tmp_path / "epoch.7.bin"))["x"].tolist() == [7.0, 7.0]
    with pytest.raises(WeightsError, match=r"cannot be read .*directory"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("lengths", "rest", "words"),
    [
        ((1, 1, 7, 1, 8), b"sxfloat32" + struct.pack("<i", 3) + bytes(8), r"s//x has 8 bytes, which is not \(3,\) of float32"),
        ((1, 1, 7, 1, 8), b"sxunknown" + struct.pack("<i", 2) + bytes(8), "dtype 'unknown', which is no array of numbers"),
        ((-1, 1, 7, 1, 8), b"", "no AlphaFold 3 records"),
        ((1 << 20, 1, 7, 1, 8), b"", "no AlphaFold 3 records"),
    ],
)
def test_records_that_contradict_themselves(lengths: tuple[int, ...], rest: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(struct.pack("<5i", *lengths) + rest)
    with pytest.raises(WeightsError, match=words):
        open_source(tmp_path / "x.bin")


@pytest.mark.parametrize("first", [b"PK", b"\x80\x00", af3_records.ZSTD_MAGIC[:2]])
def test_safetensors_whose_length_looks_like_another_format(first: bytes, tmp_path: Path) -> None:
    """The first bytes of a safetensors file are the length of its header, which can be those that other formats begin with."""
    wanted = int.from_bytes(first, "little")
    text = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", wanted) + text.ljust(wanted).encode() + struct.pack("<f", 2.5))
    assert everything(open_source(tmp_path / "x.safetensors"))["x"].item() == 2.5


# --- files that mean harm, and classes of other packages ---------------------------------------------------------------------------------


class Command:
    """Runs a shell command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.trace}",)


class Touch:
    """Creates a file when it is unpickled, without a module that torch blocks."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.trace,)


class Stateful:
    """Creates a file when its state is set."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __setstate__(self, state: dict[str, Any]) -> None:
        Path(state["trace"]).touch()


class Evaluated:
    """Has the interpreter evaluate a text when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return eval, (f"__import__('pathlib').Path({str(self.trace)!r}).touch()",)


HOSTILE = [Command, Touch, Stateful, Evaluated]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("new", [True, False], ids=["zip", "old"])
def test_nothing_in_a_checkpoint_is_executed(hostile: Callable[[Path], object], new: bool, tmp_path: Path) -> None:
    trace, path, harmless = tmp_path / "executed", tmp_path / "x.pt", {"w": torch.ones(3)}
    torch.save({"config": hostile(trace), "state_dict": harmless}, path, _use_new_zipfile_serialization=new)
    torch.load(path, weights_only=False)
    assert trace.exists(), "the file does harm to whoever unpickles it, or this test would show nothing"
    trace.unlink()
    try:
        read = everything(open_source(path))
        assert torch.equal(read["w"], torch.ones(3))
    except WeightsError as error:  # torch reads nothing that names the shell, and does not call what a stub returns
        assert hostile in (Command, Touch) and "cannot be read as a torch checkpoint: Trying to " in str(error)
    assert not trace.exists()


def test_nothing_is_executed_that_the_user_declared_safe(tmp_path: Path) -> None:
    """And the user's own declarations are as they were."""
    torch.save({"config": Stateful(tmp_path / "executed"), "state_dict": {"w": torch.ones(3)}}, tmp_path / "x.pt")
    with torch.serialization.safe_globals([Stateful]):
        before = set(torch.serialization.get_safe_globals())
        assert everything(open_source(tmp_path / "x.pt")).keys() == {"w"}
        assert set(torch.serialization.get_safe_globals()) == before and Stateful in before
    assert not (tmp_path / "executed").exists()


class Config(dict[str, Any]):
    """As other packages' configs: a class of its own, with state."""


@pytest.mark.parametrize("new", [True, False], ids=["zip", "old"])
def test_classes_of_other_packages(new: bool, tmp_path: Path) -> None:
    """What public checkpoints hold beside tensors: namespaces, defaultdicts, types, nested objects of unknown classes."""
    counts: dict[str, int] = collections.defaultdict(int)
    counts["a"] = 1
    namespace = argparse.Namespace(arch="msa_transformer", inner=argparse.Namespace(layers=12), kind=dict, path=Path("x"))
    content = {"args": namespace, "counts": counts, "epoch": 3, "hyper_parameters": {"type": list, "any": Any}}
    model = {"layer.weight": torch.ones(2, 3), "layer.bias": nn.Parameter(torch.zeros(2))}
    torch.save({**content, "model": model}, tmp_path / "x.pt", _use_new_zipfile_serialization=new)
    source = open_source(tmp_path / "x.pt")
    assert source.shapes == {"layer.weight": (2, 3), "layer.bias": (2,)}
    assert source.taken == "the entry 'model'"


def test_a_class_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    config = Config(a=1)
    torch.save({"config": config, "model": {"w": torch.ones(2)}}, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match=r"x\.pt cannot be read as a torch checkpoint: .*save its state_dict\(\) alone"):
        open_source(tmp_path / "x.pt")


def test_npz_is_not_unpickled(tmp_path: Path) -> None:
    with (tmp_path / "x.npz").open("wb") as file:
        np.savez(file, fine=np.ones(2), harm=np.array([Touch(tmp_path / "executed")], dtype=object))
    with pytest.raises(WeightsError, match=r"harm is no array of numbers \(it holds object\) in .*x\.npz"):
        open_source(tmp_path / "x.npz")
    assert not (tmp_path / "executed").exists()


def test_torchscript_is_told(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(1)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt", "a") as archive:
        archive.writestr("x/constants.pkl", pickle.dumps(()))
    with pytest.raises(WeightsError, match="torchscript"):
        open_source(tmp_path / "x.pt")


# --- which of several sets of parameters -------------------------------------------------------------------------------------------------

W = {"w": torch.ones(2)}
EMA = {"w": torch.zeros(2)}


@pytest.mark.parametrize(
    ("content", "names", "words"),
    [
        (W, W, ""),
        ({"state_dict": W, "epoch": 3}, W, "the entry 'state_dict'"),
        ({"model": W, "optimizer": {"state": {0: {"step": torch.ones(1)}}}}, W, "the entry 'model'"),
        ({"ema": {"params": EMA, "decay": 0.999}, "state_dict": W}, EMA, "the entry 'ema.params'; not 'state_dict'"),
        ({"callbacks": {"ema": {"ema_weights": EMA}}, "state_dict": W}, EMA, "the entry 'callbacks.ema.ema_weights'; not 'state_dict'"),
        ({"lr": torch.ones(1), "state_dict": W}, W, "the entry 'state_dict'; not ''"),
        ({"module": {f"module.{k}": x for k, x in W.items()}}, W, "the entry 'module'; names without 'module.'"),
        ({"a": EMA, "state_dict": W}, W, "the entry 'state_dict'; not 'a'"),
        ({"model._orig_mod.w": W["w"]}, W, "the file itself; names without '_orig_mod.', 'model.'"),
        ({"model": {"model.w": W["w"], "shadow.w": EMA["w"]}}, EMA, "the entry 'model'; of that the moving average, 'shadow.'"),
    ],
)
def test_which_entry_is_taken(content: dict[str, Any], names: dict[str, Tensor], words: str) -> None:
    tensors, taken = choose(content, "x.pt")
    assert tensors.keys() == names.keys() and all(torch.equal(tensors[name], x) for name, x in names.items())
    assert taken == words


def test_an_entry_by_name() -> None:
    content = {"ema": {"params": EMA}, "state_dict": W}
    tensors, taken = choose(content, "x.pt", "state_dict")
    assert torch.equal(tensors["w"], W["w"]) and taken == "the entry 'state_dict'; not 'ema.params'"
    with pytest.raises(WeightsError, match=r"x\.pt has no parameters under entry='other'; it has some under 'ema\.params', 'state_dict'"):
        choose(content, "x.pt", "other")
    assert open_source(content, "state_dict").taken == taken  # a checkpoint that is in memory already


@pytest.mark.parametrize(("content", "words"), [({}, "its 0 entries"), ({"epoch": 3, "x": [torch.ones(1)]}, "epoch, x")])
def test_a_checkpoint_without_parameters(content: dict[str, Any], words: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match=rf"x\.pt holds no parameters: none of {words} has tensors"):
        open_source(tmp_path / "x.pt")


def test_a_checkpoint_that_is_no_mapping(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "x.pt")
    with pytest.raises(WeightsError, match=r"x\.pt holds a list; expected a state dict"):
        open_source(tmp_path / "x.pt")


def test_without_zstandard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.bin.zst").write_bytes(af3_records.ZSTD_MAGIC + bytes(20))
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(WeightsError, match=r"pip install 'evoattn\[weights\]'"):
        open_source(tmp_path / "x.bin.zst")
