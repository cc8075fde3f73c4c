#pragma once
// Inside of core/config: from a merged tree to a JobConfig, with everything that is wrong.

#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/config/load.h"
#include "core/config/schema.h"
#include "core/tasks/task.h"

namespace tidepool::config {

class Binder {
 public:
  // `loaded` gets config, origins and warnings; `problems` what is wrong. as_written: what a plug-in would
  // say of its name and its options is not asked, because it may be gone since, or do wrong.
  Binder(LoadedConfig& loaded, std::vector<Problem>& problems, bool as_written)
      : as_written_(as_written), loaded_(loaded), problems_(problems) {}

  void Bind(const Node& root);

  [[nodiscard]] bool as_written() const { return as_written_; }
  // Whether the key was written somewhere (not a default).
  [[nodiscard]] bool Written(const std::string& key) const {
    return loaded_.OriginOf(key).kind != Origin::Kind::kDefault;
  }
  // Written with another value than the usual one: a resolved config has every key. requires FindKey(key)
  [[nodiscard]] bool Says(const std::string& key) const;
  // Whether the value of the key could be read.
  [[nodiscard]] bool Good(const std::string& key) const { return !bad_.contains(key); }
  [[nodiscard]] bool AllGood(std::initializer_list<const char*> keys) const;
  // The key of the list that was written, else the first: the line to look at.
  [[nodiscard]] std::string FirstWritten(std::initializer_list<const char*> keys) const;
  // A rule about keys that could all be read: where it is broken, `key` is complained about.
  void Rule(const std::string& key, std::initializer_list<const char*> keys, bool broken,
            const std::string& what);
  // The same where any of the keys may be the one to change.
  void Rule(std::initializer_list<const char*> keys, bool broken, const std::string& what);
  // Adds a problem at the place of `key` (of the nearest enclosing section, if it is not written).
  void Complain(const std::string& key, const std::string& what);
  // The same of a status that begins with "name: ", where the key is `section` + name.
  void ComplainOf(const std::string& section, const Status& status);
  void Warn(const std::string& key, const std::string& what);
  [[nodiscard]] Place PlaceOf(const std::string& key) const;

 private:
  void BindMap(const Node& map, const std::string& section);
  void BindSection(const Node& value, const std::string& full);
  void CheckOptionNames(const Node& name, const std::string& section, const std::string& file,
                        std::span<const tasks::Option> options);
  void BindData(const Node& map);
  void BindEnvironment(const Node& map);
  void ResolveCommand(const Node& node, std::vector<std::string>& command);
  void BindAlgorithm(const Node& map);
  void BindFunctions(const Node& node);
  void BindKey(const Key& key, const Node& node, const std::string& shown, size_t index);
  // Whether a key that only jobs of kind `of` have is written in another one, which is a problem.
  bool Foreign(const Node& node, const std::string& shown, JobKind of);
  void Unknown(const std::string& section, const std::string& name, const Node& node,
               std::vector<std::string> known);
  void Wrote(const std::string& key, const Node& node);  // where its value came from
  // Sets an option of a task or an environment, where it has one of this name and the value is right.
  void BindOption(const std::string& section, const std::string& name, const Node& value,
                  std::span<const tasks::Option> options, std::map<std::string, std::string>& into);
  void ResolvePath(const Node& node, const std::string& shown, std::string& path);
  void ResolveSocket(const Node& node, std::string& endpoint);
  void Fail(const Place& place, const std::string& key, const std::string& what);

  const bool as_written_;
  LoadedConfig& loaded_;
  std::vector<Problem>& problems_;
  std::set<std::string> bad_;
  std::map<std::string, Place> sections_;
};

// Rules between keys; may adjust defaults (and notes it in the origins). Runs after Bind; skips
// rules about values that could not be read.
void CheckAcrossKeys(Binder& binder, LoadedConfig& loaded);

}  // namespace tidepool::config
