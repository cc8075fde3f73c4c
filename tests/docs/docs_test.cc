// The documentation says what the code does: lists that could drift are compared with their source.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "core/base/journal_records.h"
#include "core/config/render.h"

namespace tidepool {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path << " cannot be read (tests run in the root of the repository)";
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Names in `backticks`.
std::vector<std::string> Quoted(const std::string& text) {
  static const std::regex quoted("`([^`\n]+)`");
  std::vector<std::string> names;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), quoted); it != std::sregex_iterator(); ++it)
    names.push_back((*it)[1]);
  return names;
}

TEST(ConfigReferenceTest, IsTheOneThatTheSchemaGives) {
  EXPECT_TRUE(ReadText("docs/config.md") == config::ConfigReference())
      << "docs/config.md is out of date; run: build/bin/tidepool config reference > docs/config.md";
}

// Fields of each kind of record, as `tidepool journal --json` names them.
struct FieldNames {
  std::vector<std::string> names;
  template <typename T>
  void operator()(const char* name, const T& /*field*/) {
    if (std::is_same_v<T, WorkerRef> && std::string(name) == "worker") {
      names.emplace_back("w");
      names.emplace_back("inc");
    } else {
      names.emplace_back(name);
    }
  }
};

template <size_t kKind = 0>
void AddKinds(std::map<std::string, std::vector<std::string>>& kinds) {
  if constexpr (kKind < std::variant_size_v<JournalRecord>) {
    JournalRecord record(std::in_place_index<kKind>);
    FieldNames fields;
    VisitFields(std::get<kKind>(record), fields);
    const std::string kind = RecordName(record);
    // FAULT's class is `kind` in the struct, because `class` is a word of the language.
    if (kind == "FAULT")
      std::replace(fields.names.begin(), fields.names.end(), std::string("kind"), std::string("class"));
    kinds[kind] = fields.names;
    AddKinds<kKind + 1>(kinds);
  }
}

TEST(JournalReferenceTest, HasEveryKindWithItsFieldsInOrder) {
  std::map<std::string, std::vector<std::string>> source;
  AddKinds(source);
  std::map<std::string, std::vector<std::string>> documented;
  std::istringstream lines(ReadText("docs/journal.md"));
  static const std::regex row(R"(^\| `([A-Z_]+)` \| (.*?) \| .* \|$)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, row)) documented[match[1]] = Quoted(match[2]);
  }
  for (const auto& [kind, fields] : source) {
    ASSERT_TRUE(documented.contains(kind)) << "docs/journal.md lacks " << kind;
    EXPECT_EQ(documented[kind], fields) << kind;
  }
  for (const auto& [kind, fields] : documented)
    EXPECT_TRUE(source.contains(kind)) << kind << " is no kind of record";
}

TEST(MetricsReferenceTest, HasEveryNameThatIsWrittenAndNoOther) {
  // Where metrics are made. A name that is put together is written with what varies in <>.
  std::set<std::string> written = {
      "reward/<name>/mean", "staleness/hist/<lag>", "critic/values/<of>", "critic/returns/<of>",
      "dpo/<what>",         "reward_model/<what>",  "eval/<job>/<what>",  "eval/reward/<name>/mean"};
  static const std::regex name(R"re((?:\[|Count\(|count_\()"([a-z_]+(?:/[a-z_]+)+)")re");
  for (const char* path :
       {"workers/controller/run_metrics.cc", "workers/controller/connections.cc",
        "workers/controller/outputs.cc", "workers/controller/process.cc", "workers/controller/samples.cc",
        "workers/controller/steps.cc", "workers/controller/turns.cc", "core/observe/held_out.cc",
        "core/train/columns.cc", "core/train/step_metrics.cc", "core/train/trainer.cc",
        "core/train/pair_step.cc", "core/policy/policy_trainer.cc", "core/policy/fragment_rows.cc",
        "core/policy/sac_trainer.cc", "workers/device/text_actor.cc"}) {
    const std::string text = ReadText(path);
    for (auto it = std::sregex_iterator(text.begin(), text.end(), name); it != std::sregex_iterator(); ++it)
      written.insert((*it)[1]);
  }
  static const std::regex shown(R"re((?:Counter|Gauge|Durations)\("([a-z_]+)")re");
  for (const char* path :
       {"workers/controller/pages.cc", "workers/net/watch_pages.cc", "workers/net/worker_pages.cc",
        "workers/serve/agent_endpoint.cc", "workers/serve/endpoint.cc", "core/observe/exposition.cc"}) {
    const std::string text = ReadText(path);
    for (auto it = std::sregex_iterator(text.begin(), text.end(), shown); it != std::sregex_iterator(); ++it)
      written.insert((*it)[1]);
  }
  std::set<std::string> documented;
  std::istringstream lines(ReadText("docs/metrics.md"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    for (const std::string& found : Quoted(line.substr(0, line.find(" | ", 2)))) documented.insert(found);
  }
  for (const std::string& found : written)
    EXPECT_TRUE(documented.contains(found)) << "docs/metrics.md lacks " << found;
  for (const std::string& found : documented)
    EXPECT_TRUE(written.contains(found)) << "docs/metrics.md has " << found << ", which nothing writes";
}

}  // namespace
}  // namespace tidepool
