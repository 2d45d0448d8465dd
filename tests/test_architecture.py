"""The rules of CONTRIBUTING.md that can be read off the source text, without running it.

Each rule is a function from a package folder to a list of violations, so every rule is also tried on a package that
breaks it.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "evoattn"

# From the bottom up. A module may import from its own row and the rows above it here, never from one below.
LAYERS = [
    ["errors", "files", "shapes", "units"],
    ["ops"],
    ["updates", "config"],
    ["execution"],
    ["primitives"],
    ["blocks"],
    ["stacks"],
    ["check_cases", "model", "heads", "memory", "weights", "io", "parallel", "train"],
    ["runs", "check", "contacts"],
    ["terminal"],
    ["check_cli", "msa_cli", "plan_cli", "weights_cli", "train_cli"],
    ["contacts_cli"],
    ["cli"],
    ["__init__", "__main__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

OPTIONAL = {"deepspeed", "triton", "cuequivariance_torch", "flash_attn", "matplotlib", "pyhmmer", "pyfamsa", "zstandard", "tensorboard"}
ATTENTION_CORE = {"softmax", "log_softmax", "logsoftmax", "scaled_dot_product_attention"}
INIT_MAX_LINES = 60


def modules(package: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(package.rglob("*.py")):
        yield path.relative_to(package), ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def layer(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imported(node: ast.AST, path: Path) -> list[str]:
    """The absolute dotted names that an import statement of the module at `path` asks for; [] for any other node."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    origin = node.module or ""
    if node.level:
        folder = ["evoattn", *path.parts[:-1]]
        parent = folder[: len(folder) - node.level + 1]
        origin = ".".join([*parent, *filter(None, [node.module])])
    if origin == "evoattn":  # `from evoattn import ops` asks for a module, or for a name of __init__
        return [f"evoattn.{alias.name}" for alias in node.names]
    return [origin]


def imports_that_go_up(package: Path) -> list[str]:
    found = []
    for path, tree in modules(package):
        if layer(path) not in RANK:
            found.append(f"{path}: its layer {layer(path)!r} has no place in LAYERS")
            continue
        for node in ast.walk(tree):
            for name in imported(node, path):
                if name.split(".")[0] != "evoattn":
                    continue
                target = [*name.split("."), "__init__"][1]
                if RANK.get(target, len(LAYERS)) > RANK[layer(path)]:
                    found.append(f"{path}:{node.lineno}: {layer(path)} imports {name}, which is not below it")
    return found


def attention_outside_ops(package: Path) -> list[str]:
    found = []
    for path, tree in modules(package):
        if layer(path) == "ops":
            continue
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Attribute):
                names = [node.attr]
            elif isinstance(node, ast.Name):
                names = [node.id]
            elif isinstance(node, ast.ImportFrom):
                names = [alias.name for alias in node.names]
            found += [f"{path}:{node.lineno}: {name}" for name in names if name.lower().strip("_") in ATTENTION_CORE]
    return found


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below `node` that importing the module runs: not function bodies, nor `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from run_at_import(child)


def optional_packages_at_import(package: Path) -> list[str]:
    """A file of kernels, *_kernels.py, is made of its package: it counts as optional itself."""
    found = []
    for path, tree in modules(package):
        if path.stem.endswith("_kernels"):
            continue
        for node in run_at_import(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            for name in imported(node, path) + names:
                if name.split(".")[0] in OPTIONAL or name.endswith("_kernels"):
                    found.append(f"{path}:{node.lineno}: {name} is imported at module level")
    return found


def environment_reads(package: Path) -> list[str]:
    found = []
    for path, tree in modules(package):
        for node in ast.walk(tree):
            names = [node.attr] if isinstance(node, ast.Attribute) else []
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                names = [alias.name for alias in node.names]
            found += [f"{path}:{node.lineno}: os.{name}" for name in names if name in {"environ", "getenv", "environb"}]
    return found


def long_init(package: Path) -> list[str]:
    lines = len((package / "__init__.py").read_text(encoding="utf-8").splitlines())
    return [f"__init__.py: {lines} lines, at most {INIT_MAX_LINES}"] if lines > INIT_MAX_LINES else []


RULES = [imports_that_go_up, attention_outside_ops, optional_packages_at_import, environment_reads, long_init]


@pytest.mark.parametrize("rule", RULES)
def test_rule_holds(rule: Callable[[Path], list[str]]) -> None:
    assert rule(PACKAGE) == []


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (imports_that_go_up, "ops/a.py", "from evoattn.blocks.msa import MSARowAttention"),
        (imports_that_go_up, "ops/a.py", "from ..config import EvoformerConfig"),
        (imports_that_go_up, "ops/a.py", "from .. import config"),
        (imports_that_go_up, "ops/a.py", "import evoattn.primitives"),
        (imports_that_go_up, "blocks/a.py", "from evoattn import EvoformerStack"),
        (imports_that_go_up, "blocks/a.py", "def f():\n    import evoattn"),
        (imports_that_go_up, "misc.py", "x = 1"),
        (attention_outside_ops, "primitives/a.py", "a = torch.softmax(x, -1)"),
        (attention_outside_ops, "primitives/a.py", "a = nn.Softmax(-1)(x)"),
        (attention_outside_ops, "primitives/a.py", "from torch.nn.functional import softmax as s"),
        (attention_outside_ops, "primitives/a.py", "a = F.scaled_dot_product_attention(q, k, v)"),
        (optional_packages_at_import, "ops/a.py", "import triton.language as tl"),
        (optional_packages_at_import, "ops/a.py", "try:\n    from deepspeed import ops\nexcept ImportError:\n    pass"),
        (optional_packages_at_import, "ops/a.py", "class A:\n    import matplotlib"),
        (optional_packages_at_import, "ops/a.py", "from evoattn.ops.triton import attention_kernels"),
        (optional_packages_at_import, "ops/a.py", "from evoattn.ops.triton.attention_kernels import forward"),
        (environment_reads, "ops/a.py", "import os\nx = os.environ.get('EVOATTN')"),
        (environment_reads, "ops/a.py", "from os import getenv"),
        (long_init, "__init__.py", "\n" * 61),
    ],
)
def test_rule_sees_a_violation(rule: Callable[[Path], list[str]], path: str, source: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(source)
    assert rule(tmp_path)


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (imports_that_go_up, "blocks/a.py", "from evoattn.ops import x\nfrom ..config import X\nfrom . import msa"),
        (imports_that_go_up, "__init__.py", "from evoattn.stacks import EvoformerStack\nfrom .ops import attention"),
        (attention_outside_ops, "ops/a.py", "a = torch.softmax(x, -1)"),
        (optional_packages_at_import, "ops/a.py", "def f():\n    import triton"),
        (optional_packages_at_import, "ops/a.py", "def f():\n    from evoattn.ops.triton import attention_kernels"),
        (optional_packages_at_import, "ops/attention_kernels.py", "import triton"),
        (optional_packages_at_import, "ops/a.py", "if TYPE_CHECKING:\n    import triton"),
    ],
)
def test_rule_allows(rule: Callable[[Path], list[str]], path: str, source: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(source)
    assert rule(tmp_path) == []


def test_import_is_light() -> None:
    """`import evoattn` loads torch, einops, jaxtyping and the standard library; all it adds to those is itself."""
    script = (
        "import sys, torch, einops, jaxtyping\n"
        "before = set(sys.modules)\n"
        "import evoattn\n"
        "added = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(added - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["evoattn"]
