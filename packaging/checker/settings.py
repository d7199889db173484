"""The example of a configuration, next to the structs that crates/agent/src/config.rs reads one into."""

import re
import tomllib

from .tools import Failure

# A setting that is commented out has no space behind the #; a comment has one.
SETTING = re.compile(r"^#(?=[\[a-z])", re.MULTILINE)
STRUCT = re.compile(r"pub struct (\w+) \{\n(.*?)\n\}", re.DOTALL)
FIELD = re.compile(r"^    pub (\w+): (.+),$", re.MULTILINE)
DEFAULT = re.compile(r"impl Default for (\w+) \{.*?Self \{(.*?)\}\n", re.DOTALL)
PLAIN = re.compile(r"(\w+): (\d[\d_]*(?:\.\d+)?|true|false|Vec::new\(\))(?:,|\s*$)")
LISTEN = re.compile(r'DEFAULT_LISTEN: &str = "([^"]+)"')
FUNCTION = re.compile(r"fn (\w+)\(\) -> \w+ \{\s*(\d+)\s*\}")
BY_FUNCTION = re.compile(r'#\[serde\(default = "(\w+)"\)\]\n    pub (\w+):')


def known(source):
    """Returns the keys that config.rs knows, by table ("" for those outside of tables), with the defaults of those that
    have a plain one, and `None` for all others."""
    structs = {name: dict(FIELD.findall(body)) for name, body in STRUCT.findall(source)}
    if "Config" not in structs:
        raise Failure("crates/agent/src/config.rs has no struct Config any more; change packaging/checker/settings.py")
    defaults = {name: dict(PLAIN.findall(body)) for name, body in DEFAULT.findall(source)}
    functions = dict(FUNCTION.findall(source))
    for name, body in STRUCT.findall(source):
        for function, field in BY_FUNCTION.findall(body):
            defaults.setdefault(name, {})[field] = functions[function]
    tables = {"": {}}
    for key, kind in structs["Config"].items():
        inner = re.fullmatch(r"Option<(\w+)>", kind)
        if inner and inner.group(1) in structs:
            name = inner.group(1)
            tables[key] = {field: value(defaults.get(name, {}).get(field)) for field in structs[name]}
        else:
            tables[""][key] = value(defaults.get("Config", {}).get(key))
    listen = LISTEN.search(source)
    if listen:
        tables[""]["listen"] = listen.group(1)
    return tables


def value(text):
    """Returns the value that a literal of Rust stands for."""
    if text is None:
        return None
    if text == "Vec::new()":
        return []
    return tomllib.loads(f"it = {text}")["it"]


def check(text, source):
    """Compares the example `text` with the text of config.rs: it has every key, no other, and the same defaults."""
    try:
        read = tomllib.loads(SETTING.sub("", text))
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"agent.toml is not TOML once its settings are no comments any more: {error}") from error
    if tomllib.loads(text):
        raise Failure("agent.toml changes something as it is: comment all its settings out")
    expected = known(source)
    shown = {"": {key: it for key, it in read.items() if not isinstance(it, dict)}}
    shown |= {key: it for key, it in read.items() if isinstance(it, dict)}
    problems = []
    for table in sorted(expected.keys() | shown.keys()):
        ours, theirs = shown.get(table, {}), expected.get(table, {})
        for key in sorted(ours.keys() | theirs.keys()):
            name = f"{table}.{key}" if table else key
            if key not in theirs:
                problems.append(f"{name} is no key of config.rs")
            elif key not in ours:
                problems.append(f"{name} of config.rs is missing")
            elif theirs[key] is not None and ours[key] != theirs[key]:
                problems.append(f"{name} is {ours[key]}, but its default is {theirs[key]}")
    if problems:
        raise Failure(f"agent.toml: {'; '.join(problems)}")
    keys = [it for table in expected.values() for it in table.values()]
    return f"{len(keys)} keys, {sum(it is not None for it in keys)} defaults compared"
