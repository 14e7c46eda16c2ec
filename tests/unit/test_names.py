"""A name means one thing in the package."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import gpudash

PACKAGE = Path(gpudash.__file__).parent

MEANT = {
    "Block": "the model that is trained calls its blocks as anybody would, and so does torch's allocator",
}
"""Names of two public classes, and why."""


def test_no_two_public_classes_have_one_name_unless_one_is_the_others_parent() -> None:
    found: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                found[node.name].append((str(path.relative_to(PACKAGE)), bases))
    twice = {
        name: [place for place, _bases in classes]
        for name, classes in found.items()
        if len(classes) > 1 and not any(name in bases for _place, bases in classes)
    }
    assert twice.keys() == MEANT.keys(), twice


def test_a_topic_of_a_note_is_a_member_of_topic_and_no_word_of_its_own() -> None:
    words = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in (
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
        ):
            about = [keyword.value for keyword in call.keywords if keyword.arg == "topic"]
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value).endswith(("context", "_news")):
                about += call.args[:1] if call.func.attr == "note" else []
            words += [f"{path.name}: {topic.value}" for topic in about if isinstance(topic, ast.Constant)]
    assert words == []


OUTGROWN = re.compile(
    r"(?i:(^|_)(words|tells?|telling|told|heed(ing)?|looks?|looking|looked|wish(es)?|grant|door|asked|meant|farewell|knock(ing)?|let_go"
    r"|forth|beside|anew|limb|oracle|librarian|ways?_(in|out))(_|$))"
    r"|Told|WayOut|Asked|Wish|Heed|Oracle|Limb|Librarian|Door|Words|Look(?!up)"
)
"""Names that a newcomer would not grep for: report, request, poll, handle, text and the like took their place."""

THE_FIELDS = {
    "tell": "a file's position, as Python calls it",
    "looks_like_json": "what a newcomer would call it",
    "_LOOKS_UP": "looking up in a table",
    "look_at": "where somebody is to look in a source",
    "_looked_into": "a step that is taken apart",
    "first_words": "words of a text, one by one",
    "SHORT_NAME_WORDS": "a count of words",
    "WORDS_WIDTH": "a width in words of text",
    "AROUND_WORDS_PX": "space around words of text",
    "energy_words": "a key of recorded results",
    "overhead_words": "a key of recorded estimates",
    "request_words": "a key of recorded explanations",
}
"""Names that would seem to be among them, and why they stay."""


def test_names_are_those_of_the_field() -> None:
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        source = io.StringIO(path.read_text(encoding="utf-8"))
        names = {token.string for token in tokenize.generate_tokens(source.readline) if token.type == tokenize.NAME}
        found |= {name for name in names | {path.stem} if OUTGROWN.search(name)}
    assert found == THE_FIELDS.keys()
