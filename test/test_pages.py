"""The pages: links lead somewhere, commands and names exist, examples run."""

import contextlib
import inspect
import io
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml

from balancer import Balancer, Ramp

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    not (ROOT / "balancer").exists(),
    reason="the pages belong to a checkout, and here an installed package is tested",
)
PAGES = sorted(
    page
    for pattern in ("*.md", ".github/*.md", "tools/*.md", "balancer/**/*.md")
    for page in ROOT.glob(pattern)
) + sorted((ROOT / "egs").glob("**/*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
WIDE = {"balancer/bin/gan_codec_train.py"}  # takes all that ESPnet's trainer takes
# Each page by its name, so that a failure says which one.
each_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(ROOT))
)


def text_of(page):
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def blocks_of(page, language):
    """The fenced blocks of a page in one language; "" is none."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [block for kind, block in found if kind == language]


def codes_of(page):
    """What stands between backticks, on one line."""
    return [" ".join(code.split()) for code in CODE.findall(text_of(page))]


def anchors_of(page):
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


@each_page
def test_links_lead_to_a_file_and_a_heading(page):
    for link in LINK.findall(text_of(page)):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target), link


def commands_of(page):
    """The commands of a page as words: those of its blocks and those within a line."""
    lines = "\n".join(blocks_of(page, "sh")).replace("\\\n", " ").splitlines()
    for line in [*lines, *codes_of(page)]:
        if re.match(r"(python|torchrun|accelerate|\.) |\S*\.sh\b", line):
            yield shlex.split(line, comments=True)


def scripts_of(page, words):
    """The files that a command may mean, and its words after that; [] for others."""
    if words[:2] == ["python", "-m"]:
        module = words[2].replace(".", "/") + ".py"
        return ([ROOT / module] if module.startswith("balancer") else []), words[3:]
    for i, word in enumerate(words):
        if word.endswith((".py", ".sh")):
            paths = [ROOT / word, page.parent / word, ROOT / "tools" / word]
            if word == "run.sh":
                paths += ROOT.glob("egs/*/*/run.sh")
            if "/" not in word:
                paths += ROOT.glob(f"egs/*/{word}")
            return [path for path in paths if path.exists()] or paths, words[i + 1 :]
    return [], []


def knows(script, option):
    """Whether a script, or the file of options beside it, has an option.

    One that says that its options are another's is asked by that one's file.
    """
    text = script.read_text(encoding="utf-8")
    if re.search(rf"{option}\b", text):
        return True
    options = script.with_suffix(".yaml")
    if of_another := re.search(r"Options are those of (\w+)\.py", text):
        options = script.with_name(f"{of_another[1]}.yaml")
    return options.exists() and option.strip("-") in yaml.safe_load(options.read_text())


@each_page
def test_commands_exist_with_their_options(page):
    for words in commands_of(page):
        scripts, rest = scripts_of(page, words)
        if not scripts:
            continue
        assert scripts[0].exists(), words
        if str(scripts[0].relative_to(ROOT)) in WIDE:
            continue
        for option in (word for word in rest if re.fullmatch(r"--[\w-]+", word)):
            assert any(knows(script, option) for script in scripts), (words, option)


@each_page
def test_tests_and_files_that_are_named_exist(page):
    tests = {path.name for path in (ROOT / "test").rglob("test_*.py")}
    for path in (ROOT / "test").rglob("test_*.py"):
        tests.update(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    for code in codes_of(page):
        if re.fullmatch(r"test_\w+(\.py)?", code):
            assert code in tests
        if re.fullmatch(r"(balancer|egs|test|tools)/[\w./]+\.\w+", code):
            assert (ROOT / code).exists(), code


@each_page
def test_sections_of_recipes_are_read(page):
    for block in blocks_of(page, "yaml"):
        section = dict(yaml.safe_load(block).get("balancer_conf", {}))
        section.pop("probe", None)  # these two belong to the task
        section.pop("losses", None)
        Balancer.from_config(section)


@each_page
def test_python_is_python(page):
    for block in blocks_of(page, "python"):
        compile(block, str(page), "exec")


def test_front_page_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_example_of_the_front_page_prints_what_it_says():
    (code,), (said,) = (blocks_of(ROOT / "README.md", kind) for kind in ("python", ""))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    number = re.compile(r"\d+(?:\.\d+)?")
    printed = printed.getvalue()
    assert number.sub("N", printed).split() == number.sub("N", said).split()
    values = [[float(n) for n in number.findall(text)] for text in (printed, said)]
    assert values[0] == pytest.approx(values[1], abs=0.1)  # percent


def options_in(page):
    """name → default in the table of options, as Python has it."""
    values = {"none": None, "true": True, "false": False}
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", text_of(page), re.MULTILINE)
    return {
        name: values[value] if value in values else yaml.safe_load(value.strip("`"))
        for name, value in rows
        if name in inspect.signature(Balancer).parameters
    }


def test_tables_of_options_are_the_arguments():
    arguments = inspect.signature(Balancer).parameters
    defaults = {name: argument.default for name, argument in arguments.items()}
    table = options_in(ROOT / "balancer" / "README.md")
    assert {
        name: float(v) if name == "epsilon" else v for name, v in table.items()
    } == (defaults)
    front = options_in(ROOT / "README.md")
    assert len(front) == 7 and front.items() <= defaults.items()


def test_weights_that_change():
    block, _ = blocks_of(ROOT / "balancer" / "README.md", "python")
    names = {"Balancer": Balancer, "Ramp": Ramp}
    exec(block, names)
    assert names["balancer"].weights["mel"] == 2
    assert isinstance(names["balancer"].weights["adv"], Ramp)


def test_losses_beside_the_balanced_ones():
    _, block = blocks_of(ROOT / "balancer" / "README.md", "python")
    generator = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3))
    z = generator[0](torch.ones(4, 3))
    y = generator[1](z)
    names = {
        **{"generator": generator, "commit": z.square().sum(), "y": y},
        **{"balancer": Balancer(), "losses": {"l1": y.abs().mean()}},
    }
    exec(block, names)
    assert names["stats"]["outside_to_balanced"] > 0
    assert generator[0].weight.grad.norm() > 0


MIGRATING = ROOT / ".github" / "MIGRATING.md"
AFTER = [
    block[block.rindex("\n\n") :] if "# after" in block else ""
    for block in (blocks_of(MIGRATING, "python") if MIGRATING.exists() else [])
]


@pytest.mark.parametrize("lines", AFTER)
def test_lines_to_migrate_to_run(lines):
    if "weighting=" in lines:
        pytest.importorskip("torchjd")
    torch.manual_seed(0)
    net, critic = torch.nn.Linear(3, 5), torch.nn.Linear(5, 1)
    y = net(torch.randn(4, 3))
    score = critic(y).mean()
    losses = {"rec": y.abs().mean(), "adv": -score}
    names = {
        **losses,
        "losses": losses,
        "y": y,
        "Balancer": Balancer,
        "balancer": Balancer(),
        "weights": {"rec": 1.0, "adv": 1.0},
        "disc_factor": 1.0,
        "disc_weight": 1.0,
        "codebook": net.weight.square().sum(),
        "codebook_weight": 0.0,
        "vq": net.weight.square().sum(),
        "weight_others": 0.0,
        "d_loss": score,
        "optimizer_d": torch.optim.SGD(critic.parameters(), lr=1.0),
        "discriminator_parameters": list(critic.parameters()),
    }
    exec(lines, names)
    if "backward" not in lines:
        names["loss"].backward()
    assert net.weight.grad.norm() > 0
    shares = [names["stats"][f"{name}_share"] for name in losses]
    assert shares == pytest.approx([0.5, 0.5], rel=1e-3)
