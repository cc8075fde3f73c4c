#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/text/jinja/template.h"

namespace tidepool::text::jinja {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

const Json kVariables = {
    {"n", 3}, {"words", {"b", "a"}}, {"m", {{"role", "user"}, {"content", "hi"}}}, {"text", "h\u00e9llo"}};

StatusOr<std::string> Render(const std::string& source, Limits limits = {}) {
  auto compiled = Template::Compile(source);
  if (!compiled.ok()) return compiled.status();
  return (*compiled)->Render(kVariables, {.unix_time_s = 86400 * 365, .limits = limits});
}
std::string Text(const std::string& source) {
  auto text = Render(source);
  return text.ok() ? *text : "error: " + text.status().ToString();
}
Status ErrorOf(const std::string& source, Limits limits = {}) { return Render(source, limits).status(); }

// What these should be was written down from jinja2 3.1; tests/interop compares with it directly.
TEST(JinjaTest, WhiteSpaceControl) {
  EXPECT_EQ(Text("a\n{% if true %}\nb\n{% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(Text("  {% if true %}\n  b\n  {% endif %}  \nc"), "  b\n  \nc");
  EXPECT_EQ(Text("a {%- if true -%} b {%- endif -%} c"), "abc");
  EXPECT_EQ(Text("a\n  {{ 1 }}\nb"), "a\n  1\nb");
  EXPECT_EQ(Text("a\n  {{- 1 -}}\n  b"), "a1b");
  EXPECT_EQ(Text("x\n  {# c #}\n  y"), "x\n  y");
  EXPECT_EQ(Text("a\n\t {%+ if true %}b{% endif +%}\nc"), "a\n\t b\nc");
  EXPECT_EQ(Text("a\r\nb\rc"), "a\nb\nc");
  EXPECT_EQ(Text("{% raw %}{{ x }}{% endraw %}"), "{{ x }}");
}

TEST(JinjaTest, Expressions) {
  EXPECT_EQ(Text("{{ -3 // 2 }} {{ -3 % 2 }} {{ 7 / 2 }} {{ 2 ** 3 ** 2 }}"), "-2 1 3.5 64");
  EXPECT_EQ(Text("{{ 1 < 2 < 3 }} {{ 'a' in 'abc' }} {{ 1 not in [2] }}"), "True True True");
  EXPECT_EQ(Text("{{ 'a' ~ 1 ~ none }} {{ 'a' if n > 5 else 'b' }}"), "a1None b");
  EXPECT_EQ(Text("{{ text[1] }} {{ text[::-1] }} {{ text[-3:] }} {{ words[-1] }}"),
            "\u00e9 oll\u00e9h llo a");
  EXPECT_EQ(Text("{{ [1, 'a', none, 1.5] }} {{ (1,) }} {{ {'a': [true]} }}"),
            "[1, 'a', None, 1.5] (1,) {'a': [True]}");
  EXPECT_EQ(Text("{{ 1e20 }} {{ 1e-7 }} {{ 0.1 + 0.2 }} {{ 1e15 }}"),
            "1e+20 1e-07 0.30000000000000004 1000000000000000.0");
  EXPECT_EQ(Text("{{ nothing }}|{{ nothing is defined }}|{{ m.nothing or 'x' }}"), "|False|x");
  EXPECT_EQ(Text("{{ m['role'] }} {{ m.content }} {{ m.get('x', 'y') }} {{ m.items() | list }}"),
            "user hi y [('role', 'user'), ('content', 'hi')]");
}

TEST(JinjaTest, ScopesOfAssignments) {
  EXPECT_EQ(Text("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"), "231");
  EXPECT_EQ(Text("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ "
                 "ns.n }}"),
            "3");
  EXPECT_EQ(Text("{% if true %}{% set y = 5 %}{% endif %}{{ y }}"), "5");
  EXPECT_EQ(Text("{% for i in [1,2] %}{% if z is defined %}z{% endif %}{% set z = 1 %}{% endfor %}"), "");
  EXPECT_EQ(Text("{% generation %}in{% set q = 1 %}{% endgeneration %}{{ q is defined }}"), "inFalse");
}

TEST(JinjaTest, LoopsAndMacros) {
  EXPECT_EQ(Text("{% for w in words %}{{ loop.index }}{{ w }}{{ '' if loop.last else ',' }}{% endfor %}"),
            "1b,2a");
  EXPECT_EQ(Text("{% for x in [1,2,3] if x != 2 %}{{ x }}/{{ loop.length }} {% else %}none{% endfor %}"),
            "1/2 3/2 ");
  EXPECT_EQ(Text("{% for x in [1,2,3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}"), "13");
  EXPECT_EQ(Text("{% for x in [1,2,3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}"), "1");
  EXPECT_EQ(Text("{% macro f(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(b=2, a=3) }}"),
            "[1d][32]");
  EXPECT_EQ(Text("{% macro o(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) o(5) %}y={{ y }}{% endcall %}"),
            "<y=5>");
}

TEST(JinjaTest, FiltersAndTests) {
  EXPECT_EQ(Text("{{ words | sort | join('-') | upper }} {{ words | length }} {{ '  x ' | trim }}"),
            "A-B 2 x");
  EXPECT_EQ(Text("{{ m | tojson }} {{ {'a': '<\u00fc>'} | tojson }}"),
            R"({"role": "user", "content": "hi"} {"a": "<ü>"})");
  EXPECT_EQ(Text("{{ {'a': [1], 'b': []} | tojson(indent=2) }}"),
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}");
  // As json.dumps: DEL is no printable ASCII character.
  EXPECT_EQ(Text("{{ '\\x7f\\x1f\u00fc' | tojson(ensure_ascii=true) }}"), R"("\u007f\u001f\u00fc")");
  EXPECT_EQ(Text("{{ '\\x7f\\x1f' | tojson }}"), "\"\x7f\\u001f\"");
  EXPECT_EQ(Text("{{ ['b', 'A', 'a'] | sort }} {{ ['b', 'A', 'a'] | sort(true, true) }} {{ ['b', 'A', 'a'] | "
                 "unique }}"),
            "['A', 'a', 'b'] ['b', 'a', 'A'] ['b', 'A']");
  EXPECT_EQ(
      Text("{{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(by='value', reverse=true) }}"),
      "[('A', 2), ('b', 1)] [('A', 2), ('b', 1)]");
  EXPECT_EQ(Text("{{ [{'k': 'b'}, {'k': 'A'}, {'k': 'a'}] | groupby('k') | map('first') | list }} "
                 "{{ [2, 9, 4] | max }} {{ '<a&b>' | e }} {{ 2 ** 3 ** 2 }} {{ 7 // 2 * 2 - 1 % 3 }}"),
            "['A', 'b'] 9 &lt;a&amp;b&gt; 64 5");
  EXPECT_EQ(Text("{{ [m] | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}"),
            "['hi']");
  EXPECT_EQ(Text("{{ 'x' is string and m is mapping and words is iterable and 2 is even }}"), "True");
  EXPECT_EQ(Text("{{ 'a b'.split() }} {{ 'xxa'.lstrip('x') }} {{ 'hello world' | title }}"),
            "['a', 'b'] a Hello World");
  EXPECT_EQ(Text("{{ strftime_now('%d %b %Y') }}"), "01 Jan 1971");
}

TEST(JinjaTest, ErrorsNameTheLine) {
  EXPECT_THAT(ErrorOf("a\n{{ 1 + 'x' }}").message(), HasSubstr("line 2: the operator +"));
  EXPECT_THAT(ErrorOf("a\n\n{{ nothing.x }}").message(), HasSubstr("line 3: 'nothing' is undefined"));
  EXPECT_THAT(ErrorOf("{% if true %}").message(), HasSubstr("endif"));
  EXPECT_THAT(ErrorOf("x\n{% for a in b").message(), HasSubstr("line 2"));
  EXPECT_THAT(ErrorOf("{{ raise_exception('no system role') }}").message(), HasSubstr("no system role"));
  EXPECT_THAT(ErrorOf("{{ 1 | nofilter }}").message(), HasSubstr("'nofilter'"));
  EXPECT_EQ(ErrorOf("{% include 'x' %}").code(), StatusCode::kUnimplemented);
  EXPECT_EQ(ErrorOf("{% for x in y recursive %}{% endfor %}").code(), StatusCode::kUnimplemented);
}

TEST(JinjaTest, ValuesOfTheCallerCannotBeChanged) {
  EXPECT_THAT(ErrorOf("{{ words.append('c') }}").message(), HasSubstr("append"));
  EXPECT_THAT(ErrorOf("{{ m.update({}) }}").message(), HasSubstr("update"));
  EXPECT_THAT(ErrorOf("{% set m.role = 'x' %}").message(), HasSubstr("namespace"));
}

TEST(JinjaTest, ARunawayTemplateIsStopped) {
  const Limits small = {.operations = 100'000, .heap_bytes = 1 << 20, .output_bytes = 1 << 16};
  const auto stopped = [&](const std::string& source) {
    const Status status = ErrorOf(source, small);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << source << ": " << status.ToString();
  };
  stopped("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}");
  stopped("{{ 'a' * 1000000000 }}");
  stopped(
      "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor "
      "%}");
  stopped("{% for i in range(100000) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}");
  stopped("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}");
  stopped(
      "{% set ns = namespace(l=[1,2,3,4]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor "
      "%}");
  stopped("{{ ('a' * 1000).replace('a', 'b' * 10000) }}");
  stopped("{{ 'a' | center(100000000000) }}");
}

TEST(JinjaTest, DeepNestingIsRefusedAndDoesNotOverflowTheStack) {
  const auto repeat = [](const std::string& text, int count) {
    std::string result;
    for (int i = 0; i < count; ++i) result += text;
    return result;
  };
  for (const std::string& source :
       {"{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}",
        "{{ " + repeat("[", 100000) + repeat("]", 100000) + " }}", "{{ " + repeat("not ", 100000) + "1 }}",
        "{{ " + repeat("-", 100000) + "1 }}", "{{ 1" + repeat(" + 1", 100000) + " }}",
        "{{ 1" + repeat("|abs", 100000) + " }}", "{{ a" + repeat(".a", 100000) + " }}",
        "{{ 1" + repeat(" if 1 else 1", 100000) + " }}", repeat("{% if 1 %}", 100000),
        repeat("{% for a in b %}", 5000) + repeat("{% endfor %}", 5000),
        "{% if 0 %}" + repeat("{% elif 0 %}", 100000) + "{% endif %}"}) {
    EXPECT_FALSE(Render(source).ok()) << source.substr(0, 40);
  }
  // Values nested by a loop: walking through them is refused, making them is not.
  const std::string deep =
      "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}";
  EXPECT_EQ(Text(deep), "");
  EXPECT_FALSE(Render(deep + "{{ ns.l }}").ok());
  EXPECT_FALSE(Render(deep + "{{ ns.l | tojson }}").ok());
  EXPECT_FALSE(Render(deep + "{{ ns.l == [ns.l] }}").ok());
}

}  // namespace
}  // namespace tidepool::text::jinja
