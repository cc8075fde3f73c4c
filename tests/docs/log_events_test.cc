// docs/operating.md names every event that a log can have.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace tidepool {
namespace {

std::string Contents(const std::filesystem::path& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path << " cannot be read (tests run in the root of the repository)";
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Words of `text` that stand between `quote`s.
std::set<std::string> Words(const std::string& text, const std::string& quote) {
  std::set<std::string> words;
  const std::regex quoted(quote + "([a-z][a-z_]*)" + quote);
  for (auto it = std::sregex_iterator(text.begin(), text.end(), quoted); it != std::sregex_iterator(); ++it)
    words.insert((*it)[1]);
  return words;
}

TEST(LogEventsTest, EachIsInTheTablesOfOperating) {
  const std::string docs = Contents("docs/operating.md");
  const size_t begin = docs.find("\n## Logs\n"), end = docs.find("\n## ", begin + 1);
  ASSERT_NE(begin, std::string::npos);
  const std::set<std::string> known = Words(docs.substr(begin, end - begin), "`");
  // The first argument of what makes a line (a choice between names is one), or the one behind a level, a
  // worker or the sentence.
  const std::regex first(
      R"re((?:out_\.Warn|out_\.Note|out_\.Detail|Info|Debug|Told|LogWorkerFailure)\(([^,]*),)re");
  const std::regex second(R"re((?:Log|Event)\(\s*LogLevel::k\w+,([^,]*),)re");
  const std::regex of_worker(R"re(out_\.Say\(\s*LogLevel::k\w+,[^,"]*,([^,]*),)re");
  const std::regex last(R"re([^._](?:Warn|Tell)\([^;]*,\s*("[a-z_]+")\s*(?:,\s*\{[^;]*)?\);)re");
  std::map<std::string, std::string> missing;
  size_t found = 0;
  for (const char* folder :
       {"scheduler/machines", "workers/controller", "workers/device", "workers/net", "workers/side"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".cc") continue;
      const std::string source = Contents(entry.path());
      for (const std::regex& call : {first, second, of_worker, last}) {
        for (auto it = std::sregex_iterator(source.begin(), source.end(), call); it != std::sregex_iterator();
             ++it) {
          for (const std::string& word : Words((*it)[1], "\"")) {
            ++found;
            if (!known.contains(word)) missing[word] = entry.path();
          }
        }
      }
    }
  }
  EXPECT_GT(found, 60U) << "the calls look otherwise now: change what is looked for here";
  for (const auto& [word, where] : missing)
    ADD_FAILURE() << where << ": event " << word << " is not in the tables of docs/operating.md, Logs";
}

}  // namespace
}  // namespace tidepool
