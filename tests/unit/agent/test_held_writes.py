"""Writing that is held back: a program sees what it would see, and nothing of it is there afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]

INSTALLED = """
import sys
sys.path.insert(0, {root!r})
from gpudash.agent.predicting.held_writes import HeldWrites
HeldWrites({scratch!r}, [], [{temporary!r}]).install()
"""

PREPARED = """
import errno, glob, io, json, os, pathlib, shutil, tempfile
def seen(do):
    try:
        found = do()
    except OSError as error:
        return type(error).__name__, error.errno
    return sorted(found) if isinstance(found, (list, set)) else found
def read(name):
    with open(name) as file: return file.read()
def write(name, text, mode="w"):
    with open(name, mode) as file: return file.write(text)
def tree():
    return sorted(os.path.join(top, name) for top, _, names in os.walk(".") for name in names)
"""

DEEDS = {
    "appends": "write('a.txt', 'more', 'a'); print(read('a.txt'), os.path.getsize('a.txt'))",
    "writes in place": "f = open('a.txt', 'r+'); f.seek(2); f.write('X'); f.close(); print(read('a.txt'))",
    "writes anew": "write('a.txt', 'new'); print(read('a.txt'), pathlib.Path('a.txt').stat().st_size)",
    "makes exclusively": "print(seen(lambda: write('a.txt', '', 'x')), seen(lambda: write('n.txt', 'n', 'x')), "
    "seen(lambda: write('n.txt', 'n', 'x')))",
    "touches": "pathlib.Path('t').touch(); print(os.path.exists('t'), tree())",
    "makes folders": "os.makedirs('d/e/f'); print(seen(lambda: os.mkdir('d')), seen(lambda: os.makedirs('d/e')), "
    "os.makedirs('d/e', exist_ok=True), os.listdir('d'), os.path.isdir('d/e/f'))",
    "writes where no folder is": "print(seen(lambda: write('no/x', '')), seen(lambda: os.mkdir('no/y')))",
    "removes": "os.remove('a.txt'); print(seen(lambda: read('a.txt')), os.path.exists('a.txt'), "
    "seen(lambda: os.unlink('a.txt')), tree()); write('a.txt', 'again'); print(read('a.txt'))",
    "removes a folder": "print(seen(lambda: os.rmdir('sub'))); shutil.rmtree('sub'); "
    "print(os.path.exists('sub/b.txt'), tree(), seen(lambda: os.listdir('sub')))",
    "renames": "os.rename('a.txt', 'r.txt'); print(tree(), read('r.txt'), seen(lambda: os.rename('a.txt', 'z')))",
    "replaces as atomic writers do": "write('sub/b.txt.tmp', 'whole'); os.replace('sub/b.txt.tmp', 'sub/b.txt'); "
    "print(read('sub/b.txt'), seen(lambda: os.listdir('sub')))",
    "renames a folder": "os.rename('sub', 'bus'); print(tree(), read('bus/b.txt'), os.path.exists('sub'))",
    "copies": "shutil.copy('a.txt', 'c.txt'); shutil.copytree('sub', 'tub'); shutil.move('c.txt', 'sub/c.txt'); "
    "print(tree(), read('tub/b.txt'), read('sub/c.txt'))",
    "reads through descriptors": "f = os.open('o.txt', os.O_CREAT | os.O_WRONLY); os.write(f, b'by number'); "
    "os.close(f); print(read('o.txt'), os.fstat(os.open('o.txt', os.O_RDONLY)).st_size)",
    "looks for patterns": "write('sub/z.log', ''); print(sorted(glob.glob('**/*', recursive=True)), "
    "sorted(map(str, pathlib.Path('.').rglob('*'))), sorted(entry.name for entry in os.scandir('sub')))",
    "works in a new folder": "os.makedirs('run'); os.chdir('run'); write('here.txt', 'x'); "
    "print(os.listdir('.'), read('here.txt'))",
    "makes temporary files": "f = tempfile.NamedTemporaryFile('w+', dir='.', delete=False); f.write('x'); f.close(); "
    "print(len(tree()), read(f.name)); g = tempfile.TemporaryDirectory(); "
    "write(g.name + '/in', 'y'); print(read(g.name + '/in'), os.listdir(g.name)); g.cleanup(); "
    "print(os.path.exists(g.name))",
    "changes modes": "write('m.sh', ''); os.chmod('m.sh', 0o700); "
    "print(oct(os.stat('m.sh').st_mode), os.access('m.sh', os.X_OK))",
    "names paths by bytes": "write(b'bytes', 'x'); print(sorted(os.listdir(b'.')), read(b'bytes'))",
    "is told of what is not there": "print(seen(lambda: read('nothing')), "
    "seen(lambda: os.stat('nothing')), seen(lambda: os.listdir('nothing')))",
}


def folder(path: Path) -> Path:
    (path / "sub").mkdir(parents=True)
    (path / "a.txt").write_text("text of a")
    (path / "sub" / "b.txt").write_text("text of b")
    return path


def contents(path: Path) -> dict[str, str]:
    return {str(one.relative_to(path)): one.read_text() if one.is_file() else "" for one in path.rglob("*")}


@pytest.mark.parametrize("deed", DEEDS)
def test_a_program_sees_what_it_writes_and_nothing_is_written(deed: str, tmp_path: Path) -> None:
    plain, held, scratch, temporary = (tmp_path / name for name in ("plain", "held", "scratch", "temporary"))
    scratch.mkdir()
    temporary.mkdir()
    before = contents(folder(held))
    begun = INSTALLED.format(root=str(ROOT), scratch=str(scratch), temporary=str(temporary))

    def run(code: str, where: Path) -> subprocess.CompletedProcess[str]:
        surroundings = {"TMPDIR": str(temporary), "PATH": "/usr/bin:/bin"}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=where, env=surroundings, capture_output=True, text=True, check=False)

    real, imitated = run(PREPARED + DEEDS[deed], folder(plain)), run(begun + PREPARED + DEEDS[deed], held)

    assert real.returncode == 0, real.stderr
    assert (imitated.stdout, imitated.returncode) == (real.stdout, 0), imitated.stderr
    assert contents(held) == before
    assert list(temporary.iterdir()) == []


def test_a_tokenizer_is_saved_elsewhere_and_loaded_from_there(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "work").mkdir()
    (tmp_path / "scratch").mkdir()
    begun = INSTALLED.format(root=str(ROOT), scratch=str(tmp_path / "scratch"), temporary=str(tmp_path / "none"))
    begun = begun.replace("HeldWrites(", "held = HeldWrites(").replace(".install()", "; held.install()")
    code = f"""{begun}
import os
import tokenizers
held.tokenizers_imported(tokenizers)
made = tokenizers.Tokenizer(tokenizers.models.BPE())
os.makedirs("out")
made.save("out/tokenizer.json")
made.model.save("out")
print(sorted(os.listdir("out")), tokenizers.Tokenizer.from_file("out/tokenizer.json").get_vocab_size())
"""

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "work", capture_output=True, text=True)

    assert done.stdout == "['merges.txt', 'tokenizer.json', 'vocab.json'] 0\n", done.stderr
    assert list((tmp_path / "work").iterdir()) == []
