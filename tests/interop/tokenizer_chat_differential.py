#!/usr/bin/env python3
"""Compares the chat-template interpreter with jinja2, set up as transformers does.

  pip install -r tests/interop/tokenizer_requirements.txt     (in an environment of its own)
  tests/interop/tokenizer_chat_differential.py --binary build/tests/text_conformance [--random N]

Templates: those in tests/core/text/templates/*.jinja (written after the shapes of published ones), a list
of expressions and statements, and random expressions made from a grammar. A case agrees if both give the
same text or both fail. (jinja2 folds constants when it compiles, and an error then counts as undefined; so the
random expressions take their values from variables.) Exit code 1 if any differs.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: __import__("datetime").datetime(1970, 1, 1).strftime(f)
    return env


TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Gets the weather, \u00fcberall <now> & 'then'.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "A \"city\"."},
                                                    "days": {"type": "integer", "enum": [1, 2]}},
                   "required": ["city"]}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "K\u00f6ln", "days": 2}}}]}
SYSTEM = {"role": "system", "content": "You are terse.\n"}
USER = {"role": "user", "content": "  Hello \u4f60\u597d\n<b>&amp;</b> "}
ASSISTANT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi there!"}
CONVERSATIONS = [
    ([USER], None), ([SYSTEM, USER], None), ([SYSTEM, USER, ASSISTANT, USER], None), ([USER, ASSISTANT, USER], None),
    ([USER, ASSISTANT], None), ([USER], TOOLS), ([SYSTEM, USER], TOOLS),
    ([SYSTEM, USER, CALL, {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"t\": 3.5}"}, ASSISTANT, USER], TOOLS),
    ([USER, CALL, {"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}], TOOLS),
    ([{"role": "user", "content": [{"type": "text", "text": "part"}, {"type": "image"}]}], None),
    ([USER, {**CALL, "content": None}, {"role": "tool", "content": "a"}], None),
    ([USER, {**CALL, "content": None, "name": None}, {"role": "tool", "content": "a"}], TOOLS),
    ([USER, {"role": "assistant", "content": "4", "reasoning": "2 + 2", "tool_calls": None}, USER], None),
    ([USER, {"role": "assistant", "content": "4", "reasoning_content": None, "thinking": "hm"}, USER], None),
    ([USER, USER], None), ([ASSISTANT], None), ([], None), ([{"role": "x"}], None),
    ([{"role": "user", "content": None}], None), ([{"role": "user", "content": 3, "extra": [1, 2.5, True, None, {"a": []}]}], None),
]

SNIPPETS = r"""
{{ 1 }} {{ 1.0 }} {{ -3 // 2 }} {{ -3 % 2 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1e20 }} {{ 1e-7 }} {{ 0.1 + 0.2 }} {{ 1_000 }}
{{ true }} {{ none }} {{ [1, 'a', none, true, 1.5] }} {{ (1,) }} {{ (1, 2) }} {{ {'a': 1, 'b': [2]} }} {{ 'it\'s' }} {{ ["it's", 'say "x"', 'a\nb\\'] }}
{{ 'a' ~ 1 ~ none }} {{ 'a' + 'b' }} {{ 'ab' * 2 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ 'a' 'b' }}
{{ 1 + 'a' }}
{{ nothing }}|{{ nothing is defined }}|{{ nothing is undefined }}|{{ nothing or 'x' }}|{{ not nothing }}
{{ nothing.x }}
{{ nothing['x'] }}
{{ nothing + 1 }}
{{ nothing ~ 'x' }}|{{ nothing | length }}|{{ nothing | trim }}|{{ nothing | upper }}|{{ nothing == nothing }}|{{ 'x' in nothing }}
{{ nothing | tojson }}
{{ nothing() }}
{{ messages.nope }}|{{ messages[100] }}|{{ messages['x'] }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }} {{ 'a' == 1 }}
{{ 'a' < 1 }}
{{ 'b' in 'abc' }} {{ 1 in [1, 2] }} {{ 'a' in {'a': 1} }} {{ 'z' not in 'abc' }} {{ not 1 in [2] }}
{{ 1 in 'abc' }}
{{ 'a' if true else 'b' }} {{ 'a' if false }}| {{ 1 if 0 else 2 if 0 else 3 }}
{{ 'hello'[0] }} {{ 'hello'[-1] }} {{ 'hello'[1:3] }} {{ 'hello'[::-1] }} {{ 'hello'[:-1] }} {{ 'hello'[10:] }} {{ 'hello'[-100:2] }} {{ [1,2,3,4][::2] }} {{ [1,2,3,4][3:0:-2] }} {{ '日本語'[1] }} {{ '日本語'[1:] }} {{ (1,2,3)[1:] }}
{{ 'hello'[::0] }}
{{ ' x '.strip() }}| {{ 'xxaxx'.strip('x') }} {{ ' x '.lstrip() }}| {{ ' x '.rstrip() }}| {{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b c'.split(maxsplit=1) }} {{ ''.split() }} {{ ''.split(',') }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.upper() }} {{ 'ÄÖß'.lower() }} {{ 'straße'.upper() }} {{ "they're bill's".title() }} {{ 'hello World'.capitalize() }} {{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '-', 1) }} {{ 'ab'.replace('', '-') }}
{{ 'abcabc'.find('c') }} {{ 'abc'.find('z') }} {{ 'abcabc'.rfind('c') }} {{ 'abcabc'.count('bc') }} {{ ', '.join(['a', 'b']) }} {{ 'abc'.index('c') }}
{{ 'abc'.index('z') }}
{{ ','.join([1]) }}
{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ ''.isdigit() }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '.') }} {{ 'ab'.center(5, '*') }} {{ 'abc'.center(6, '*') }}
{{ 'a\nb\r\nc'.splitlines() }} {{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '{} {x} {{}}'.format(1, x=2) }} {{ '{0}{1}{0}'.format('a', 'b') }}
{{ {'a': 1}.items() | list }} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.values() | list }} {{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1}['a'] }} {{ {'a': 1}.a }} {{ {1: 'x'}[1] }}
{{ {'items': 1}['items'] }} {{ {'items': 1}.x is defined }} {{ {'get': 5}['get'] }}
{{ [3,1,2].append(4) }}
{{ {'a': 1}.update({}) }}
{{ {'a': 1}.pop('a') }}
{{ [1,2,1].count(1) }} {{ [1,2].index(2) }}
{{ '  a '|trim }}| {{ 'xax'|trim('x') }} {{ 'ab'|upper }} {{ 'AB'|lower }} {{ 'foo bar-baz'|title }} {{ 'foo BAR'|capitalize }} {{ [1,2]|length }} {{ 'é日'|length }} {{ {'a':1}|count }} {{ [1,2]|join(', ') }} {{ 'abc'|join('-') }} {{ [{'x':1},{'x':2}]|join('+', attribute='x') }}
{{ 5|length }}
{{ [1,2]|first }} {{ [1,2]|last }} {{ ''|first }}| {{ 'abc'|first }} {{ nothing|default('d') }} {{ ''|default('d') }}| {{ ''|default('d', true) }} {{ none|default('d') }} {{ nothing|d }}|
{{ [1,0,2,none]|select|list }} {{ [1,2,3,4]|select('even')|list }} {{ [1,2,3]|reject('odd')|list }} {{ [{'a':1},{'a':0},{}]|selectattr('a')|list }} {{ [{'a':1},{'a':2}]|selectattr('a','equalto',2)|list }} {{ [{'a':1},{'a':2}]|rejectattr('a','eq',2)|list }} {{ [{'a':1},{}]|selectattr('a','defined')|list }} {{ [1,5,3]|select('gt', 2)|list }}
{{ [{'a':1},{'a':2}]|map(attribute='a')|list }} {{ ['a','b']|map('upper')|join }} {{ [{'a':{'b':1}}]|map(attribute='a.b')|list }} {{ [{}]|map(attribute='a', default='x')|list }} {{ [[1,2],[3]]|map('length')|list }} {{ [' a ']|map('trim')|list }} {{ [1.5,2]|map('int')|list }}
{{ [3,1,2]|sort }} {{ [3,1,2]|sort(reverse=true) }} {{ ['b','A','c']|sort }} {{ ['b','A']|sort(case_sensitive=true) }} {{ [{'a':2},{'a':1}]|sort(attribute='a') }} {{ [1,2,1]|unique|list }} {{ ['a','A']|unique|list }} {{ [1,3,2]|max }} {{ [1,3,2]|min }} {{ [1,2]|sum }} {{ [{'a':1}]|sum(attribute='a') }} {{ []|max }}|
{{ [1,'a']|sort }}
{{ {'b':1,'a':2}|dictsort }} {{ {'b':1,'a':2}|dictsort(by='value') }} {{ {'b':1,'a':2}|items|list }} {{ 'abc'|reverse }} {{ [1,2]|reverse|list }} {{ [1,2,3]|batch(2)|list }} {{ [1,2,3]|batch(2,'x')|list }} {{ 'abc'|list }} {{ {'a':1}|list }}
{{ '3'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ '3.7'|int }} {{ 3.9|int }} {{ '0x1f'|int(base=16) }} {{ ' 42 '|int }} {{ '3.5'|float }} {{ 'x'|float }} {{ 3|float }} {{ none|int }} {{ true|int }} {{ 3.14159|round(2) }} {{ 2.5|round }} {{ 2.1|round(method='ceil') }} {{ 42|round }} {{ -3|abs }} {{ 1.5|abs }} {{ 1|string ~ 'x' }}
{{ {'a': [1, 2.0, true, none, 'ü<>&\'"\n']}|tojson }} {{ []|tojson }} {{ {}|tojson }} {{ 'x'|tojson }}
{{ {'a': [1, {'b': 2}], 'c': []}|tojson(indent=2) }} {{ {'b':1,'a':2}|tojson(sort_keys=true) }} {{ [1,2]|tojson(separators=(',', ':')) }} {{ 'ü\u2028😀'|tojson(ensure_ascii=true) }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ '\x00\x1f\x7f\b\f'|tojson }}
{{ 'a\nb\n\nc'|indent }} {{ 'a\nb'|indent(2, true) }} {{ 'a\n\nb'|indent(2, blank=true) }} {{ 'a\nb'|indent('> ') }} {{ 'a\n'|indent }}|
{{ 'a b'|replace(' ', '_') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'hello world foo'|wordcount }} {{ '%s-%d'|format('a', 3) }} {{ '%s' % 'x' }} {{ '%s %s' % (1, 2) }} {{ '%.2f' % 3.14159 }} {{ '%%' % () }} {{ 'ab'|center(6) }}| {{ '<a&b>'|e }} {{ 'x'|safe }}
{{ [{'k':'b','v':1},{'k':'a','v':2},{'k':'b','v':3}]|groupby('k')|map('last')|map('length')|list }} {% for k, g in [{'k':'b','v':1},{'k':'a','v':2}]|groupby('k') %}{{ k }}{{ g|length }}{% endfor %}
{{ 'x' is string }} {{ 1 is number }} {{ true is number }} {{ true is boolean }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ {} is mapping }} {{ [] is mapping }} {{ [] is iterable }} {{ 'x' is iterable }} {{ 1 is iterable }} {{ {} is sequence }} {{ 'x' is sequence }} {{ none is none }} {{ 1 is none }} {{ 2 is even }} {{ 3 is odd }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ 1 is eq 1 }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ 1 is sameas 1 }} {{ true is true }} {{ 1 is true }} {{ 'a' is lower }} {{ 'A' is upper }} {{ range is callable }} {{ 1 is not string }}
{{ 1 is foo }}
{{ 1|foo }}
{{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }} {{ dict(a=1, b='x') }} {{ namespace(a=1).a }}
{{ range(1000000)|list|length }}
{% for x in [1,2,3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x // 2) }};{% endfor %}
{% for x in [] %}a{% else %}empty{% endfor %} {% for x in [1,2,3] if x != 2 %}{{ x }}{{ loop.length }}{% endfor %} {% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %} {% for k in {'a': 1} %}{{ k }}{% endfor %} {% for c in 'ab' %}{{ c }}.{% endfor %} {% for x in nothing %}x{% endfor %}
{% for x in none %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for x in [1,2,3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %} {% for x in [1,2,3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %} {% for x in [1,2] %}{% for y in [1,2] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }}{{ loop.depth }}{% endfor %}{{ loop.index }}{% endfor %}
{% set x = 1 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }} {% if true %}{% set y = 5 %}{% endif %}{{ y }} {% for i in [1,2] %}{% if z is defined %}z{% endif %}{% set z = 1 %}{% endfor %}{{ z is defined }}
{% set ns = namespace(n=0) %}{% for i in [1,2,3] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }} {% set ns.new = 'x' %}{{ ns.new }} {{ ns.nope }}|
{% set d = {} %}{% set d.x = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set t = 1, 2 %}{{ t }} {% set block %}in {{ a }}{% endset %}{{ block|upper }} {% set f | upper %}abc{% endset %}{{ f }} {% filter upper %}abc {{ a }}{% endfilter %}
{% macro m(a, b='d', c=none) %}[{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(1) }} {{ m(1, 2) }} {{ m(b=1, a=2) }} {{ m() }} {{ m(1,2,3,4,5) }} {{ m(1, z=9) }} {{ m(1)|length }} {{ m.name }}
{% macro outer(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) outer(5) %}y={{ y }}{% endcall %} {% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * fact(n - 1)|int }}{% endif %}{% endmacro %}{{ fact(5) }} {% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}
{% macro rec(n) %}{{ rec(n + 1) }}{% endmacro %}{{ rec(0) }}
{{ raise_exception('no') }}
{% generation %}in{% set q = 1 %}{% endgeneration %}{{ q is defined }} {% raw %}{{ x }}{% endraw %} {# comment #}x {% if 1 %}a{% elif 2 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 2 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}
{{ messages | length > 3 and messages[0].role == 'user' or 'no' }} {{ not true or true }} {{ 1 + 2 * 3 ~ 'x' }} {{ -1|abs }} {{ -1 ** 2 }} {{ 2 ** 3 ** 2 }} {{ (1 + 2) * 3 }} {{ '%s' % 1 ~ 'x' }} {{ 1, 2 }} {{ 'a' is string and 1 }} {{ -messages|length }}
{{ strftime_now('%d %b %Y') }} {{ strftime_now("%Y-%m-%d") }}
{{ }}
{% if %}{% endif %}
{% endif %}
{% if true %}
{{ 'abc }}
{{ (1 }}
{% unknown %}
{{ 1 +* 2 }}
{{ a.1 }}
{{ [1,2].0 }} {{ [[1],[2]].1.0 }} 
{{ '\u00e9\x41\101\q\
b' }} {{ 'tab\there' }}
{{ 10 // 3 }} {{ 10.0 // 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 1 / 4 }} {{ 10 / 2 }}
{{ 1 // 0 }}
{{ 1 / 0 }}
{{ 123456789012 * 1000 }} {{ 1e15 }} {{ 1e16 }} {{ 123456789.123 }} {{ 1.0e-4 }} {{ 0.00001 }} {{ 100000.0 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }}
{{ {'a': 1}|string }} {{ [1, [2, {'x': (3,)}]]|string }} {{ 'é\u200b\xa0'|list }} {{ none|string }}
{{ [1,2,3]|sum(start=10) }} {{ ['a',['b']]|tojson }} {{ messages[0]|tojson }} {{ messages|map(attribute='role')|unique|join(',') }}
{%- for m in messages -%}  {{- m.role -}}  {%- endfor -%}
{{ [1, 2, 3] | last }} {{ messages[-1] is defined }} {{ messages[:1]|length }} {{ messages[1:] | length }}
{{ true and 'x' }} {{ false or none }} {{ '' and 1 }}| {{ [] or {} }} {{ 0 is boolean }} {{ (none) is none }} {{ 'A' ~ ('b' if 1) }}
{{ "x" * -1 }}| {{ [] * 5 }} {{ 3 * 'ab' }} {{ true + 1 }} {{ true * 3 }} {{ 5 - true }}
{{ 'abc' | attr('upper') is defined }} {{ loop is defined }} {{ self is defined or true }}
"""

WHITESPACE = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "  {% if true %}\n  b\n  {% endif %}  \nc", "a {%- if true -%} b {%- endif -%} c",
    "a\n  {{ 1 }}\n  b", "a\n  {{- 1 -}}\n  b", "x {# c #}\ny\n", "x\n  {# c #}\n  y\n\n", "x\n  {#- c -#}\n  y\n",
    "\n{% set x = 1 %}\n\n{{ x }}\n\n", "a\r\nb\rc\n", "a\n\t {%+ if true %}b{% endif +%}\nc", "{% if true +%}\nb{% endif %}",
    "{% raw %}\n {% if %}\n{% endraw %}\nx", "a {%- raw -%} b {%- endraw -%} c", "{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\nend",
    "  {%- for i in [1,2] %}\n  {{ i }},\n  {%- endfor %}\n end", "{{ 'a' -}}\n\n b", "\n\n", "\n", "", "x\n", "x\n\n",
    "{%- set a = 1 -%}\n{%- set b = 2 -%}\n {{ a }}{{ b }}\n", "\t{% if true %}\tx\t{% endif %}\t\n", "{{ {'a': {'b': 1}} }}", "{{ '}}' }}{{ '%}' }}",
    "a{% if true %}\n\nb{% endif %}", "{#  #}\n  {#  #}\nx", "é {%- if true %} ü{% endif %}", "{{-1}}", "{{ - 1 }}",
]


def normalised(message):
    """What transformers (apply_chat_template) makes of a message before it renders."""
    if not isinstance(message, dict):
        return message
    message = {key: value for key, value in message.items() if value is not None}
    names = [message[key] for key in ("reasoning_content", "thinking", "reasoning") if key in message]
    return {"thinking": names[0], **message, "reasoning_content": names[0]} if names else message


VARIABLES = {"one": 1, "zero": 0, "negative": -2, "real": 2.5, "text": "ab", "empty": "", "spaced": " x y ", "wide": "\u00c4\u00df\u65e5",
             "numbers": [1, 2, 3], "nobody": [], "words": ["b", "a"], "mapping": {"a": 1, "k": [1]}, "nil": None,
             "yes": True, "no": False}


def random_expression(rng, depth):
    if depth <= 0 or rng.random() < 0.2:
        return rng.choice([f"v.{name}" for name in VARIABLES] + ["nothing", "messages", "messages[0].content", "(v.one, v.text)"])
    sub = lambda: random_expression(rng, depth - 1)  # noqa: E731
    return rng.choice([
        lambda: f"({sub()} {rng.choice(['+', '-', '*', '/', '//', '%', '~', 'and', 'or', '==', '!=', '<', '>=', 'in', 'not in'])} {sub()})",
        lambda: f"({sub()})|{rng.choice(['length', 'upper', 'trim', 'first', 'last', 'list', 'tojson', 'string', 'int', 'float', 'sort', 'unique|list', 'reverse|list', 'join', 'title', 'default(0)', 'abs', 'sum', 'max', 'round', 'capitalize', 'select|list', 'wordcount', 'indent'])}",
        lambda: f"({sub()}) is {rng.choice(['string', 'number', 'mapping', 'iterable', 'sequence', 'none', 'defined', 'boolean', 'integer', 'odd', 'lower'])}",
        lambda: f"({sub()})[{rng.choice(['0', '-1', '1:', ':-1', '::-1', '::2', repr('a'), '5'])}]",
        lambda: f"({sub()}).{rng.choice(['strip()', 'upper()', 'split()', 'items()|list', 'a', 'keys()|list', 'get(' + repr('a') + ')', 'title()', 'replace(' + repr('a') + ', ' + repr('b') + ')', 'lower()', 'splitlines()', 'isdigit()'])}",
        lambda: f"({sub()} if {sub()} else {sub()})",
        lambda: f"[{sub()}, {sub()}]",
        lambda: f"{{'k': {sub()}}}",
        lambda: f"(not {sub()})",
    ])()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--random", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    env = environment()
    process = subprocess.Popen([args.binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    here = os.path.dirname(os.path.abspath(__file__))
    cases = []  # (name, source, messages, tools, add_generation_prompt)
    for path in sorted(glob.glob(os.path.join(here, "..", "core", "text", "templates", "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as file:
            source = file.read()
        for i, (messages, tools) in enumerate(CONVERSATIONS):
            for prompt in (False, True):
                cases.append((f"{os.path.basename(path)} {i}", source, messages, tools, prompt))
    for source in SNIPPETS.strip("\n").split("\n"):
        cases.append((source, source, CONVERSATIONS[2][0], None, True))
    cases += [(repr(s), s, CONVERSATIONS[2][0], None, True) for s in WHITESPACE]
    rng = random.Random(args.seed)
    for _ in range(args.random):
        source = "{% set v = messages[-1] %}{{ " + random_expression(rng, 3) + " }}"
        cases.append((source, source, CONVERSATIONS[2][0] + [VARIABLES], None, True))

    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        for i, (name, source, messages, tools, prompt) in enumerate(cases):
            folder = os.path.join(scratch, str(i))
            os.mkdir(folder)
            with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8", newline="") as file:
                file.write(source)
            with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
                json.dump({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None}, file)
            request = {"op": "chat.render", "tokenizer": folder, "messages": messages, "add_generation_prompt": prompt, "unix_time_s": 0}
            if tools is not None:
                request["tools"] = tools
            process.stdin.write(json.dumps(request, ensure_ascii=False) + "\n")
            process.stdin.flush()
            got = json.loads(process.stdout.readline())
            try:
                want = env.from_string(source).render(messages=[normalised(m) for m in messages], tools=tools, documents=None, bos_token="<s>",
                                                      eos_token="</s>", add_generation_prompt=prompt)
            except Exception as error:  # noqa: BLE001: any failure of the template
                want, reason = None, repr(error)
            if got.get("text") != want:
                bad += 1
                if bad <= 40:
                    print(f"{name[:300]}\n  jinja2 {want!r:.400}{'' if want is not None else ' ' + reason[:200]}\n  ours   {got!r:.400}")
    print(f"{len(cases)} compared, {bad} differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
