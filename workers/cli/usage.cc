#include "workers/cli/usage.h"

#include <algorithm>
#include <vector>

#include "core/base/names.h"
#include "core/config/schema.h"
#include "core/observe/comparison.h"

namespace tidepool::workers {
namespace {

// "learning-rate", "train.learning_rate" -> "train.learning_rate"; the shortest that ends so; empty: none.
std::string KeyNamed(std::string name) {
  std::ranges::replace(name, '-', '_');
  std::string found;
  for (const config::Key& key : config::Keys()) {
    if (key.path == name) return name;
    if (key.path.ends_with("." + name) && (found.empty() || key.path.size() < found.size())) found = key.path;
  }
  return found;
}

// A word that a command does not take: an option of another program, or a key of the config as an option.
std::string Unexpected(const CLI::App& command, const std::string& called, const std::string& word) {
  const std::string said = word + ": not expected by `" + called + "`; ", help = "`" + called + " --help`";
  if (!word.starts_with('-')) return said + help + " says what is";
  const std::string name = word.substr(
      word.find_first_not_of('-') == std::string::npos ? word.size() : word.find_first_not_of('-'));
  const std::string plain = name.substr(0, name.find('='));
  const bool of_config =
      command.get_option_no_throw("overrides") != nullptr || command.get_option_no_throw("config") != nullptr;
  const std::string key = of_config ? KeyNamed(plain) : std::string();
  if (!key.empty()) return said + "keys of the config are written without dashes: " + key + "=VALUE";
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& known : option->get_lnames()) options.push_back(known);
  }
  const std::string near = Nearest(plain, options);
  return said + (near.empty() ? help + " lists its options" : "did you mean --" + near + "?");
}

}  // namespace

std::string UsageError(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* inner = &app;
  std::string called = "tidepool";
  for (auto commands = app.get_subcommands(); !commands.empty(); commands = inner->get_subcommands()) {
    inner = commands.back();
    called += " " + inner->get_name();
  }
  const CLI::App& command = *inner;
  const std::vector<std::string> extra = command.remaining();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !extra.empty()) {
    // An option is the cause where there is one: the word behind it would have been its value.
    const auto option = std::ranges::find_if(extra, [](const std::string& w) { return w.starts_with('-'); });
    return Unexpected(command, called, option == extra.end() ? extra.front() : *option);
  }
  if (const CLI::Option* run = command.get_option_no_throw("run");
      run != nullptr && run->empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return "run is required: its folder, or the beginning of its name under runs/; `tidepool runs` lists "
           "them";
  }
  if (const CLI::Option* runs = command.get_option_no_throw("runs");
      runs != nullptr && runs->empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return "no run is named; name 2 to " + std::to_string(observe::kComparedRunsMax) +
           ", each by its folder or the beginning of its name under runs/; `tidepool runs` lists them";
  }
  std::string said = error.what();
  constexpr std::string_view kConvert = "Could not convert: ", kIs = " = ";
  if (const size_t is = said.find(kIs); said.starts_with(kConvert) && is != std::string::npos) {
    said = said.substr(kConvert.size(), is - kConvert.size()) + ": found '" + said.substr(is + kIs.size()) +
           "'; expected a number";
  }
  return said + "\n`" + called + " --help` has more";
}

}  // namespace tidepool::workers
